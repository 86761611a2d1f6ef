package remote

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// Recommended fills in, in the options of a client, what go-redis leaves at values that make a limiter slow when Redis is:
// it honours deadlines, gives a connection that cannot be made one try at a time, and learns of a failover in a cluster
// within seconds. What is set already stays. It returns o.
//
//	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: addr}))
//
// UniversalOptions have no ClusterStateReloadInterval: for a cluster use ClusterOptions.
func Recommended[O redis.Options | redis.ClusterOptions | redis.FailoverOptions | redis.RingOptions | redis.UniversalOptions](o *O) *O {
	set := func(deadlines *bool, retries *int, dial *time.Duration) {
		*deadlines = true
		if *retries == 0 {
			*retries = 1
		}
		if *dial == 0 {
			*dial = dialTimeout
		}
	}
	switch o := any(o).(type) {
	case *redis.Options:
		set(&o.ContextTimeoutEnabled, &o.DialerRetries, &o.DialTimeout)
	case *redis.FailoverOptions:
		set(&o.ContextTimeoutEnabled, &o.DialerRetries, &o.DialTimeout)
	case *redis.RingOptions:
		set(&o.ContextTimeoutEnabled, &o.DialerRetries, &o.DialTimeout)
	case *redis.UniversalOptions:
		set(&o.ContextTimeoutEnabled, &o.DialerRetries, &o.DialTimeout)
	case *redis.ClusterOptions:
		set(&o.ContextTimeoutEnabled, &o.DialerRetries, &o.DialTimeout)
		if o.ClusterStateReloadInterval == 0 {
			o.ClusterStateReloadInterval = reloadInterval
		}
	}
	return o
}

const (
	// dialTimeout: a server that does not even accept in this time is as good as down.
	dialTimeout = time.Second
	// reloadInterval is for how long a cluster client may take a lost master for one.
	reloadInterval = time.Second
)

// Advice is what is wrong with the settings of a client, a sentence for each; nil if nothing is known to be. hybrid.New
// logs it.
func Advice(rdb Client) (advice []string) {
	check := func(deadlines bool, retries int) {
		if !deadlines {
			advice = append(advice, "ContextTimeoutEnabled is false: the client goes on waiting for replies that the limiter has given up, and each call needs a goroutine of its own")
		}
		if retries != 1 { // 0 is the default of a Ring, which is several
			advice = append(advice, "DialerRetries is not 1: while Redis is down a call waits for several attempts to connect")
		}
	}
	switch c := rdb.(type) {
	case *redis.Client:
		check(c.Options().ContextTimeoutEnabled, c.Options().DialerRetries)
	case *redis.Ring:
		check(c.Options().ContextTimeoutEnabled, c.Options().DialerRetries)
	case *redis.ClusterClient:
		o := c.Options()
		check(o.ContextTimeoutEnabled, o.DialerRetries)
		if o.ClusterStateReloadInterval > maxReload {
			advice = append(advice, "ClusterStateReloadInterval is long: after the loss of a master the client may go on asking it for as long")
		}
		if o.MaxRedirects == 0 { // what -1 becomes
			advice = append(advice, "MaxRedirects is off: keys that move to another node fail")
		}
	}
	return advice
}

// maxReload is a ClusterStateReloadInterval that is still short.
const maxReload = 5 * time.Second
