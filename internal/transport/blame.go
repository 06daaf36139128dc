package transport

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// blamed gets what peers say about this process: see Blamed.
var blamed atomic.Pointer[func(why string)]

// Blamed sets the function that is called when a peer ends a connection because this process broke the
// rules of HTTP/2, with the peer's words. Either side may be wrong. Several goroutines may call f at
// once, and f must not wait.
func Blamed(f func(why string)) { blamed.Store(&f) }

// blame passes on a GOAWAY frame that says that this process made a mistake.
func blame(f *http2.GoAwayFrame) {
	switch f.ErrCode {
	case http2.ErrCodeProtocol, http2.ErrCodeFlowControl, http2.ErrCodeStreamClosed, http2.ErrCodeFrameSize, http2.ErrCodeCompression:
		if to := blamed.Load(); to != nil {
			(*to)(fmt.Sprintf("%s %q", f.ErrCode, f.DebugData()))
		}
	}
}
