//go:build !unix

package redistest

import "os"

func pause(*os.Process) { panic("redistest: Pause is not supported on this system") }

func resume(*os.Process) { panic("redistest: Resume is not supported on this system") }
