package transport

import (
	"fmt"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// A connError is a connection error, by RFC 9113, section 5.4.1: a mistake of the peer that ends
// the connection.
type connError struct {
	code http2.ErrCode
	why  string
}

func (e connError) Error() string { return fmt.Sprintf("%v: %s", e.code, e.why) }

// A streamError is a stream error, by RFC 9113, section 5.4.2: a mistake of the peer that ends only
// one stream.
type streamError struct {
	stream uint32
	code   http2.ErrCode
	why    string
}

func (e streamError) Error() string { return fmt.Sprintf("stream %d: %v: %s", e.stream, e.code, e.why) }

// codeOfReset returns the status code of a call whose stream the peer has reset, by
// PROTOCOL-HTTP2.md.
func codeOfReset(code http2.ErrCode) codes.Code {
	switch code {
	case http2.ErrCodeRefusedStream:
		return codes.Unavailable
	case http2.ErrCodeCancel:
		return codes.Canceled
	case http2.ErrCodeEnhanceYourCalm, http2.ErrCodeFlowControl:
		return codes.ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		return codes.PermissionDenied
	case http2.ErrCodeNo, http2.ErrCodeProtocol, http2.ErrCodeInternal, http2.ErrCodeSettingsTimeout,
		http2.ErrCodeStreamClosed, http2.ErrCodeFrameSize, http2.ErrCodeCompression,
		http2.ErrCodeConnect, http2.ErrCodeHTTP11Required:
		return codes.Internal
	}
	return codes.Unknown
}
