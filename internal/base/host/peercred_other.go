//go:build !linux

package host

import "errors"

// peer fails: only Linux is asked.
func peer(int) (Process, error) { return Process{}, errors.ErrUnsupported }
