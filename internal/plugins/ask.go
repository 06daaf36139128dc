package plugins

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// askOne asks one plugin before the call, and returns what the plugin changed. Its error refuses
// the call.
func (v *visit) askOne(ctx context.Context, p *plugin) ([]change, error) {
	at := v.call.before
	e := v.event(p, at)
	began := time.Now()
	answer, err := p.ask(ctx, at, v.now, v.metadata(ctx, at), budget(ctx, p.file.Timeout))
	e.Took = time.Since(began)
	if ctx.Err() != nil { // the client has left: that is no failure of the plugin
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	var changes []change
	if err == nil {
		for _, l := range v.call.leaves {
			changes = append(changes, l.merge(v.now, answer)...)
		}
		for _, c := range changes {
			e.Changes = append(e.Changes, c.shown())
		}
	}
	e.Err = err
	if err != nil && p.file.Fail {
		e.Exempt = v.exempt(p, err)
		e.Refused = !e.Exempt
	}
	v.count(ctx, p, e)
	if len(e.Changes) > 0 {
		v.changedBy = append(v.changedBy, e)
	}
	if e.Refused {
		return nil, v.refuse(p, err)
	}
	return changes, nil
}

// callAfter notifies the plugins how the call ended. Their answers change nothing.
func (v *visit) callAfter(ctx context.Context, result error) {
	if v.now == nil {
		return
	}
	at := v.call.after
	for _, p := range v.after {
		e := v.event(p, at)
		md := v.metadata(ctx, at)
		md.Set(metaCode, status.Code(result).String())
		if result != nil {
			md.Set(metaMessage, printable(status.Convert(result).Message()))
		}
		began := time.Now()
		// The call has been made, even if the client no longer waits.
		_, e.Err = p.ask(context.WithoutCancel(ctx), at, v.now, md, budget(ctx, p.file.Timeout))
		e.Took = time.Since(began)
		v.count(ctx, p, e)
	}
}

func (v *visit) event(p *plugin, at *point) Asked {
	return Asked{Plugin: p.name, Point: at.name, Method: v.call.method.Name, ID: v.id, LeftOut: v.leftOut}
}

func (v *visit) count(ctx context.Context, p *plugin, e Asked) {
	p.stats.count(&e)
	v.identify(p)
	v.Plugins.report(ctx, e)
}

// metadata returns the metadata for a plugin: the client's, and values for which the messages have
// no field.
func (v *visit) metadata(ctx context.Context, at *point) metadata.MD {
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		md = metadata.MD{}
	}
	for _, key := range []string{metaCode, metaMessage} {
		md.Delete(key) // clients must not set it
	}
	for key, value := range map[string]string{metaPoint: at.name, metaID: v.id, metaParent: v.parent} {
		if md.Delete(key); value != "" {
			md.Set(key, printable(value))
		}
	}
	return md
}

// exempt reports whether a call goes on although plugin p has failed with err, because it is about
// a pod that serves a plugin: without that pod the plugin would never come back. A plugin cannot
// refuse calls about its own pod. Another plugin can refuse them by its answer, but not by a failure
// to answer.
func (v *visit) exempt(p *plugin, err error) bool {
	id := v.call.object.identity(v.now)
	if v.serves(p, id) {
		return true
	}
	var no *refusal
	return !errors.As(err, &no) && v.servesAny(id)
}

// refuse returns the status of a call that plugin p refuses.
func (v *visit) refuse(p *plugin, err error) error {
	code := codes.Unavailable
	var no *refusal
	if errors.As(err, &no) {
		code = codes.FailedPrecondition
	}
	return status.Errorf(code, "criproxy: %s: refused at %s: plugin %s %v", v.call.name, v.call.before.name, p.name, err)
}

// printable makes s fit for metadata.
func printable(s string) string {
	const limit = 1024
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), limit)])
}
