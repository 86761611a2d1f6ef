package httplimit

import "strconv"

// maxInteger is the largest integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// appendInteger appends a number that is not negative, as large as the syntax allows.
func appendInteger(b []byte, n int64) []byte { return strconv.AppendInt(b, min(n, maxInteger), 10) }

// quote makes a String of a structured field (RFC 9651, 3.3.3) from printable characters.
func quote(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return string(append(b, '"'))
}

// isPrintable reports whether s has only characters that such a String may have.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
