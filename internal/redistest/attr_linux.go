package redistest

import "syscall"

// dieWithParent makes the kernel kill the server when the test binary ends in whatever way, a time-out and SIGKILL
// included.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
