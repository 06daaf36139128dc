package main

import (
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/criproxy/criproxy/codec"
)

// verboseFields are where the requests of CRI that can ask for more say so: method →
// number of the field verbose. The answer then has what the runtime has, and that is the
// environment of containers, with secrets in it.
var verboseFields = map[string]protowire.Number{"Status": 1, "PodSandboxStatus": 2, "ContainerStatus": 2, "ImageStatus": 2}

// onlyReads reports whether it is nothing but the word read-only that lets who call
// method.
func onlyReads(rules []AccessRule, method string, who *peerInfo) bool {
	if len(rules) == 0 {
		return false
	}
	var others []AccessRule
	for _, r := range rules {
		patterns := slices.DeleteFunc(slices.Clone(r.Methods), func(p string) bool { return p == readOnly })
		if len(r.Methods) == 0 || len(patterns) > 0 {
			r.Methods = patterns
			others = append(others, r)
		}
	}
	return len(others) == 0 || !allows(others, method, who)
}

// discreet is a stream whose request may not be verbose.
type discreet struct {
	grpc.ServerStream
	method string
	field  protowire.Number
}

// discreetStream is an interceptor that lets no verbose request pass where only
// read-only allows the method. It comes after those that read messages by themselves.
func discreetStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	field := verboseFields[path.Base(info.FullMethod)]
	if who := peerOf(ss.Context()); field != 0 && who != nil {
		rules := who.socket.access.Load()
		if rules == nil || onlyReads(*rules, info.FullMethod, who) {
			ss = &discreet{ss, info.FullMethod, field}
		}
	}
	return handler(srv, ss)
}

// RecvMsg is for the handler.
func (d *discreet) RecvMsg(m any) error {
	f := &codec.Frame{}
	if err := d.ServerStream.RecvMsg(f); err != nil {
		return err
	}
	if asks(f.Bytes(), d.field) {
		return status.Errorf(codes.PermissionDenied, `criproxy: read-only does not allow %s with verbose, which shows environments with secrets in them; name the method in the access list to allow it: methods: [read-only, %s]`, path.Base(d.method), path.Base(d.method))
	}
	return codec.Deliver(m, f)
}

// asks reports whether a message may have a true in the field; one that is broken may.
func asks(b []byte, field protowire.Number) bool {
	found := false
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return true
		}
		b = b[n:]
		if number == field && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			found = v != 0 // the last one holds
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return true
		}
		b = b[n:]
	}
	return found
}
