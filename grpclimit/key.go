package grpclimit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/hybridlimit/hybrid/limit"
)

// ErrNoKey: the call lacks what it should be counted by.
var ErrNoKey = errors.New("grpclimit: the call has no key")

// Call is a call about to be decided.
type Call struct {
	// Method is the full name of the method: "/package.Service/Method".
	Method string
	// Request is the request of a unary call. For a stream it is nil, but for Options.Cost with Options.PerMessage, where
	// it is the message.
	Request any
	// Target is where a Client sends the call, as it was given to grpc.NewClient. At a Server it is empty.
	Target string
}

// KeyFunc says whom a call is counted for. It returns an error that wraps ErrNoKey if the call lacks what the key is made
// of; an empty key means the same. Other errors refuse the call, see Code.
//
// The functions of this package put their kind before the key, as in "addr:192.0.2.1" and "metadata:x-api-key:abc", so
// that those of different kinds never meet in one bucket. Functions of your own do so with By; the kinds addr, metadata,
// method, target and sha256 are taken.
type KeyFunc func(ctx context.Context, call Call) (string, error)

// By makes keys of a kind, "kind:value", from the values that a function finds in calls; it may return ErrNoKey or the
// empty string if there is none. The kind is a word of your own, such as "user". If it is empty or has a colon, all calls
// fail with limit.ErrInvalid.
func By(kind string, value func(ctx context.Context, call Call) (string, error)) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		if kind == "" || strings.Contains(kind, ":") {
			return "", fmt.Errorf("%w: the kind %q of a key is empty or has a colon", limit.ErrInvalid, kind)
		}
		v, err := value(ctx, call)
		if err != nil {
			return "", err
		}
		if v == "" {
			return "", ErrNoKey
		}
		return kind + ":" + v, nil
	}
}

// ByMetadata counts calls by what the client sent as metadata of that name, such as an API key:
// "metadata:x-api-key:abc". Without it, or if it is empty, there is no key. Two values are refused as
// limit.ErrInvalidKey: taking the first or the last would let a client choose its bucket, because what serves the call
// might take the other one.
//
// Clients can put anything there. Use it behind something that has checked the value, or together with a limit by address:
// who makes up a new value for each call has a fresh allowance for each. The value becomes part of a key in Redis and has
// room in it up to about 490 bytes; use Hash if it is a secret or can be longer.
func ByMetadata(name string) KeyFunc {
	name = strings.ToLower(name)
	return By("metadata", func(ctx context.Context, _ Call) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		switch {
		case len(values) > 1:
			return "", fmt.Errorf("%w: the metadata %s is there %d times", limit.ErrInvalidKey, name, len(values))
		case len(values) == 0 || values[0] == "":
			return "", ErrNoKey
		}
		return name + ":" + values[0], nil
	})
}

// ByMethod counts calls by their method, "method:/package.Service/Method". Alone, it limits a method for all clients
// together; with ByAddr in Join, for each. Only methods that are registered are counted, so clients cannot make names up,
// unless the server has a grpc.UnknownServiceHandler.
func ByMethod() KeyFunc {
	return By("method", func(_ context.Context, call Call) (string, error) { return call.Method, nil })
}

// Join makes one key of several, see limit.Join: each combination is counted apart. If one has no key there is none.
func Join(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			var err error
			if parts[i], err = key(ctx, call); err != nil {
				return "", err
			}
			if parts[i] == "" {
				return "", ErrNoKey
			}
		}
		return limit.Join(parts...), nil
	}
}

// First takes the first of several keys that the call has: First(ByMetadata("x-api-key"), ByAddr()) counts calls without
// an API key by address. Only ErrNoKey leads to the next; a key that is there but bad is an error.
func First(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, call Call) (string, error) {
		for _, key := range keys {
			k, err := key(ctx, call)
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
	return func(ctx context.Context, call Call) (string, error) {
		k, err := key(ctx, call)
		if err != nil || k == "" {
			return "", err
		}
		sum := sha256.Sum256([]byte(k))
		return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:]), nil
	}
}
