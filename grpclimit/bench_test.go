package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/grpclimit"
	"github.com/hybridlimit/hybrid/remote"
)

// BenchmarkUnary is the interceptor around a handler that does nothing, without a network: at a key whose tokens are
// leased, with each kind of key, and at one that is denied from memory.
func BenchmarkUnary(b *testing.B) {
	m := miniredis.RunT(b)
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: m.Addr()}))
	defer rdb.Close()
	limiter := func(lim hybrid.Limit) *hybrid.Limiter {
		l, err := hybrid.New(rdb, lim, hybrid.Options{Prefix: lim.String(), Timeout: 5 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { l.Close(context.Background()) })
		return l
	}
	wide := limiter(hybrid.PerSecond(1_000_000_000))
	fixed := func(context.Context, grpclimit.Call) (string, error) { return "customer-42", nil }
	for _, bb := range []struct {
		name string
		l    *hybrid.Limiter
		opts grpclimit.Options
		want codes.Code
	}{
		{"a key that is there", wide, grpclimit.Options{Key: fixed}, codes.OK},
		{"ByMethod", wide, grpclimit.Options{Key: grpclimit.ByMethod()}, codes.OK},
		{"ByMetadata", wide, grpclimit.Options{Key: grpclimit.ByMetadata("x-api-key")}, codes.OK},
		{"ByAddr", wide, grpclimit.Options{}, codes.OK},
		{"Tell", wide, grpclimit.Options{Key: fixed, Tell: true}, codes.OK},
		{"denied", limiter(hybrid.PerDay(1)), grpclimit.Options{Key: fixed}, codes.ResourceExhausted},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s, err := grpclimit.New(bb.l, bb.opts)
			if err != nil {
				b.Fatal(err)
			}
			ctx := grpc.NewContextWithServerTransportStream(incoming(tcp("192.0.2.1:1234"), "x-api-key", "abc"), &transport{})
			info := &grpc.UnaryServerInfo{FullMethod: "/pkg.Service/Method"}
			unary, handler := s.Unary(), func(context.Context, any) (any, error) { return nil, nil }
			_, _ = unary(ctx, nil, info, handler) // the first asks Redis
			before, wrong := bb.l.Stats().Calls, 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := unary(ctx, nil, info, handler); status.Code(err) != bb.want {
					wrong++
				}
			}
			if wrong > 0 {
				b.Errorf("%d of %d calls did not end with %v", wrong, b.N, bb.want)
			}
			b.ReportMetric(float64(bb.l.Stats().Calls-before)/float64(b.N), "redis-calls/op")
		})
	}
}
