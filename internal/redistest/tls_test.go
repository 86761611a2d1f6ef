package redistest

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestStartTLS(t *testing.T) {
	t.Parallel()
	s, secure := StartTLS(t)
	if err := s.Client(t).Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
	other := func(change func(c *tls.Config)) error {
		c := secure.Clone()
		change(c)
		return s.Client(t, once, func(o *redis.Options) { o.TLSConfig = c }).Ping(ctx).Err()
	}
	if err := other(func(*tls.Config) {}); err != nil {
		t.Errorf("with the configuration returned: %v", err)
	}
	if other(func(c *tls.Config) { c.RootCAs = nil }) == nil {
		t.Error("anybody's certificate passes")
	}
	if other(func(c *tls.Config) { c.Certificates = nil }) == nil {
		t.Error("a client without a certificate passes")
	}
	if s.Client(t, once, func(o *redis.Options) { o.TLSConfig = nil }).Ping(ctx).Err() == nil {
		t.Error("the server speaks in the clear")
	}
	s.Kill()
	s.Restart(t)
	if err := s.Client(t).Ping(ctx).Err(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestStartTLS_builtWithout(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for redis-server is a shell script")
	}
	dir := t.TempDir()
	script := "#!/bin/sh\necho \">>> 'tls-port \\\"1\\\"'\"\necho 'Bad directive or wrong number of arguments'\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "redis-server"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	v := &verdict{TB: t}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		StartTLS(v)
	}()
	<-ended
	if want := "skip: " + withoutTLS; v.text != want {
		t.Errorf("%s, want %s", v.text, want)
	}
}
