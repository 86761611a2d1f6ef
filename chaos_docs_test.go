package hybrid_test

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hybridlimit/hybrid"
	"github.com/hybridlimit/hybrid/internal/redistest"
	"github.com/hybridlimit/hybrid/remote"
)

const operations = "docs/operations.md"

// tableOf returns the rows of the table of a text that has this head.
func tableOf(t *testing.T, text, head string) (rows [][]string) {
	t.Helper()
	_, text, ok := strings.Cut(text, "\n| "+head+" |\n")
	if !ok {
		t.Fatalf("%s has no table %q", operations, head)
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if !strings.HasPrefix(line, "|---") {
			rows = append(rows, cells(strings.TrimSpace(line)))
		}
	}
	return rows
}

// TestDocsRights holds the line that gives an ACL user its rights to the ones that remote/acl_test.go shows to be the least,
// and lets a limiter live by them.
func TestDocsRights(t *testing.T) {
	text := readDoc(t, operations)
	least := regexp.MustCompile(`\{tokenBucket, true, "([^"]*)"\}`).FindStringSubmatch(readDoc(t, "remote/acl_test.go"))
	if least == nil {
		t.Fatal("remote/acl_test.go does not say what leases need")
	}
	want := "    ACL SETUSER limiter on >PASSWORD ~hybrid:* +" + strings.Join(strings.Fields(least[1]), " +") + "\n"
	if !strings.Contains(text, "\n"+want) {
		t.Fatalf("%s: no line\n%s", operations, want)
	}
	srv := redistest.Start(t)
	ctx := context.Background()
	var args []any
	for s := range strings.FieldsSeq(want) {
		args = append(args, s)
	}
	if err := srv.Client(t).Do(ctx, args...).Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: srv.Addr(), Username: "limiter", Password: "PASSWORD"}))
	defer rdb.Close()
	l, err := hybrid.New(rdb, hybrid.PerSecond(100), hybrid.Options{LeaseSize: 10, OnFailure: hybrid.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	for range 15 {
		if _, err := l.Allow(ctx, "k"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.AllowN(ctx, "another", 0); err != nil {
		t.Error(err)
	}
	if err := l.Reset(ctx, "k"); err != nil {
		t.Error(err)
	}
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestDocsRecommended compares the table of settings with what Recommended sets.
func TestDocsRecommended(t *testing.T) {
	o := reflect.ValueOf(*remote.Recommended(&redis.ClusterOptions{}))
	plain := reflect.ValueOf(redis.ClusterOptions{})
	var set []string
	for i := range o.NumField() {
		if o.Field(i).Kind() != reflect.Func && !reflect.DeepEqual(o.Field(i).Interface(), plain.Field(i).Interface()) {
			set = append(set, fmt.Sprintf("`%s` | %v", o.Type().Field(i).Name, o.Field(i).Interface()))
		}
	}
	var told []string
	for _, row := range tableOf(t, readDoc(t, operations), "setting | value | why") {
		told = append(told, row[0]+" | "+row[1])
	}
	slices.Sort(set)
	slices.Sort(told)
	if !slices.Equal(set, told) {
		t.Errorf("%s says\n%s\nwant\n%s", operations, strings.Join(told, "\n"), strings.Join(set, "\n"))
	}
}

// TestDocsMemory measures what a bucket takes in Redis, and for how long. The table may be off by a fifth: allocators differ.
func TestDocsMemory(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	ctx := context.Background()
	const key = "customer-1234567890"
	measured := func(leases int) int64 {
		t.Helper()
		if err := rdb.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		for i := range max(1, leases) {
			l, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{LeaseSize: 2, LeaseTTL: time.Minute, Refresh: time.Second, Exact: leases == 0})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(ctx)
			if r, err := l.Allow(ctx, key); err != nil || !r.Allowed {
				t.Fatalf("lease %d: %+v, %v", i, r, err)
			}
		}
		name := "hybrid:{" + key + "}tb1"
		entries := 0
		for field := range rdb.HGetAll(ctx, name).Val() {
			if strings.HasPrefix(field, "@") {
				entries++
			}
		}
		if entries != leases {
			t.Fatalf("%d leases are in the hash, want %d", entries, leases)
		}
		return rdb.MemoryUsage(ctx, name, 0).Val()
	}
	rows := tableOf(t, readDoc(t, operations), "leases of the key | bytes")
	if len(rows) != 4 {
		t.Errorf("%d rows, want 4", len(rows))
	}
	for _, row := range rows {
		leases, err1 := strconv.Atoi(row[0])
		told, err2 := strconv.ParseInt(row[1], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("%q", row)
		}
		n := measured(leases)
		t.Logf("%d leases: %d bytes", leases, n)
		if n > told*6/5 || n < told*4/5 {
			t.Errorf("%d leases: %d bytes, %s says %d", leases, n, operations, told)
		}
	}
	l, err := hybrid.New(rdb, hybrid.PerMinute(5), hybrid.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	if _, err := l.Allow(ctx, "once"); err != nil {
		t.Fatal(err)
	}
	if d := rdb.PTTL(ctx, "hybrid:{once}tb1").Val(); d > 13*time.Second || d < 11*time.Second {
		t.Errorf("a key of 5/m that was used once lives for %v, want 13s", d)
	}
}

// TestDocsConnections floods a slow server with requests for many keys: the limiter uses four connections.
func TestDocsConnections(t *testing.T) {
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	proxy.Delay(2 * time.Millisecond)
	rdb := redis.NewClient(remote.Recommended(&redis.Options{Addr: proxy.Addr()}))
	defer rdb.Close()
	ctx := context.Background()
	l, err := hybrid.New(rdb, hybrid.PerSecond(1000), hybrid.Options{Exact: true, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	var load sync.WaitGroup
	for i := range 200 {
		load.Go(func() {
			for range 10 {
				if _, err := l.Allow(ctx, fmt.Sprint("key-", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	load.Wait()
	if n := rdb.PoolStats().TotalConns; n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}
