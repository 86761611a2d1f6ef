package limit_test

import (
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/hybridlimit/hybrid/limit"
)

func ExampleLimit() {
	fmt.Println(limit.PerSecond(100))
	fmt.Println(limit.PerSecond(100).WithBurst(20))
	fmt.Println(limit.Every(200 * time.Millisecond))
	fmt.Println(limit.Limit{Rate: 5, Period: 10 * time.Minute, Burst: 5})
	fmt.Println(limit.Limit{Rate: 5}.Validate())
	// Output:
	// 100/s
	// 100/s burst 20
	// 1/200ms
	// 5/10m
	// limit: invalid limit: Period 0s must be at least 1µs
}

// A limit in a configuration file is its text form.
func ExampleLimit_UnmarshalText() {
	var config struct {
		Search, Login limit.Limit
	}
	if err := json.Unmarshal([]byte(`{"search": "10/s burst 50", "login": "5/m"}`), &config); err != nil {
		log.Fatal(err)
	}
	fmt.Println(config.Search.Burst, config.Login.Period)
	// Output:
	// 50 1m0s
}

func ExampleLimit_ResetAfter() {
	lim := limit.PerMinute(60)
	fmt.Println(lim.ResetAfter(45)) // 15 tokens are missing, one flows in each second
	// Output:
	// 15s
}

// Parts are told apart whatever is in them.
func ExampleJoin() {
	fmt.Println(limit.Join("a", "b:c") == limit.Join("a:b", "c"))
	// Output:
	// false
}
