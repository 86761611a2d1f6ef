//go:build !linux

package redistest

import "syscall"

// dieWithParent asks for nothing: only Linux can do it. A test binary that crashes leaves its server running.
func dieWithParent() *syscall.SysProcAttr { return nil }
