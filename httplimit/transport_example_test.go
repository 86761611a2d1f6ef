package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/hybridlimit/hybrid/httplimit"
	"github.com/hybridlimit/hybrid/limit"
)

func ExampleNewTransport() {
	attempts := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if attempts++; attempts == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()

	transport, err := httplimit.NewTransport(limiter(limit.PerSecond(10)), httplimit.TransportOptions{
		MaxWait: 5 * time.Second,
		Retries: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	resp, err := client.Get(api.URL)
	switch {
	case errors.Is(err, limit.ErrWouldExceedDeadline): // it would have had to wait for too long
		log.Print("try again later")
	case err != nil:
		log.Print(err)
	default:
		resp.Body.Close()
		fmt.Println(resp.StatusCode, "after", attempts, "attempts")
	}
	// Output:
	// 200 after 2 attempts
}
