package fleet

import (
	"context"

	"github.com/hybridlimit/hybrid/cmd/hybridlab/internal/scenario"
)

// Redis is where the limiters go.
type Redis struct{}

// Embedded starts a Redis in this process.
func Embedded() (*Redis, error) { return &Redis{}, nil }

// At uses the server at addr.
func At(addr string) (*Redis, error) { return &Redis{}, nil }

// Close ends the embedded server.
func (r *Redis) Close() error { return nil }

// Fleet is a run.
type Fleet struct{}

// Start starts a run.
func Start(r *Redis, s scenario.Scenario) (*Fleet, error) { return &Fleet{}, nil }

// Recording is what was seen so far.
func (f *Fleet) Recording() Recording { return Recording{} }

// Hang makes Redis hang, or ends that.
func (f *Fleet) Hang(on bool) {}

// Kill kills an instance.
func (f *Fleet) Kill(instance int) {}

// Revive starts a killed instance again.
func (f *Fleet) Revive(instance int) {}

// Wait waits until the run is over.
func (f *Fleet) Wait(ctx context.Context) error { return nil }

// Stop ends the run.
func (f *Fleet) Stop() {}
