//go:build unix

package redistest

import (
	"os"
	"syscall"
)

// An error of either says that the process has ended, which the test sees in other ways.

func pause(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
