package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hybridlimit/hybrid/limit"
)

// ErrNoKey: the request lacks what it should be counted by.
var ErrNoKey = errors.New("httplimit: the request has no key")

// KeyFunc says whom a request is counted for. It returns an error that wraps ErrNoKey if the request lacks what the key
// is made of; an empty key means the same. Other errors refuse the request, see Status.
//
// The functions of this package put their kind before the key, as in "addr:192.0.2.1" and "header:X-Api-Key:abc", so that
// those of different kinds never meet in one bucket. Functions of your own do so with By; the kinds addr, header, pattern,
// host and sha256 are taken.
type KeyFunc func(r *http.Request) (string, error)

// By makes keys of a kind, "kind:value", from the values that a function finds in requests; it may return ErrNoKey or
// the empty string if there is none. The kind is a word of your own, such as "user". If it is empty or has a colon, all
// requests fail with limit.ErrInvalid.
func By(kind string, value func(r *http.Request) (string, error)) KeyFunc {
	return func(r *http.Request) (string, error) {
		if kind == "" || strings.Contains(kind, ":") {
			return "", fmt.Errorf("%w: the kind %q of a key is empty or has a colon", limit.ErrInvalid, kind)
		}
		v, err := value(r)
		if err != nil {
			return "", err
		}
		if v == "" {
			return "", ErrNoKey
		}
		return kind + ":" + v, nil
	}
}

// ByHeader counts requests by the value of a header, such as an API key: "header:X-Api-Key:abc". Without the header, or
// with an empty one, there is no key. Two values are refused as limit.ErrInvalidKey, because what serves the request
// might take the other one.
//
// Clients can put anything there. Use it behind something that has checked the value, or together with a limit by address:
// who makes up a new value for each request has a fresh allowance for each. The value becomes part of a key in Redis and
// has room in it up to about 490 bytes; use Hash if it is a secret or can be longer.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return By("header", func(r *http.Request) (string, error) {
		values := r.Header[name]
		switch {
		case len(values) > 1:
			return "", fmt.Errorf("%w: the header %s is there %d times", limit.ErrInvalidKey, name, len(values))
		case len(values) == 0 || values[0] == "":
			return "", ErrNoKey
		}
		return name + ":" + values[0], nil
	})
}

// ByPattern counts requests by the pattern that http.ServeMux has matched, "pattern:GET /users/{id}", so that the values
// of path parameters do not make keys. There is no key before the mux has matched one: put the Middleware around the
// handlers in the mux, not around the mux. Alone, it limits an endpoint for all clients together; with ByAddr in Join, for
// each.
func ByPattern() KeyFunc {
	return By("pattern", func(r *http.Request) (string, error) { return r.Pattern, nil })
}

// Join makes one key of several, see limit.Join: each combination is counted apart. If one has no key there is none.
func Join(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			var err error
			if parts[i], err = key(r); err != nil {
				return "", err
			}
			if parts[i] == "" {
				return "", ErrNoKey
			}
		}
		return limit.Join(parts...), nil
	}
}

// First takes the first of several keys that the request has: First(ByHeader("X-Api-Key"), ByAddr()) counts requests
// without an API key by address. Only ErrNoKey leads to the next; a key that is there but bad is an error.
func First(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		for _, key := range keys {
			k, err := key(r)
			if err == nil && k != "" || err != nil && !errors.Is(err, ErrNoKey) {
				return k, err
			}
		}
		return "", ErrNoKey
	}
}

// Hash replaces a key by its SHA-256, "sha256:" and 43 characters: secrets do not get into Redis, and long values are
// no error.
func Hash(key KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		k, err := key(r)
		if err != nil || k == "" {
			return "", err
		}
		sum := sha256.Sum256([]byte(k))
		return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:]), nil
	}
}
