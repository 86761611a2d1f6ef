package limit

import "strconv"

// MaxKeyLen is the longest key in bytes. A key may hold any bytes.
const MaxKeyLen = 512

// CheckKey returns nil if key can be used, else an error that wraps [ErrInvalidKey].
func CheckKey(key string) error {
	switch {
	case key == "":
		return errKeyEmpty
	case len(key) > MaxKeyLen:
		return errKeyLong
	}
	return nil
}

// Join makes one key of several parts so that different parts never give the same key: each part is preceded by its
// length, so ("a", "bc") and ("ab", "c") differ, and so do ("a:b", "c") and ("a", "b:c").
func Join(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = strconv.AppendInt(b, int64(len(p)), 10)
		b = append(b, ':')
		b = append(b, p...)
	}
	return string(b)
}
