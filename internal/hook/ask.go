package hook

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
	answer, err := p.ask(ctx, question{at, v.now, v.metadata(ctx, at), budget(ctx, p.file.Timeout)})
	e.Took = time.Since(began)
	if ctx.Err() != nil { // the client has gone, which is not the plugin's fault
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

// callAfter calls the plugins with how the call ended. What they answer changes nothing.
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
		// It has happened, whether or not the client still waits.
		_, e.Err = p.ask(context.WithoutCancel(ctx), question{at, v.now, md, budget(ctx, p.file.Timeout)})
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

// metadata returns the metadata of the call to a plugin: the client's, and the values for which
// the messages have no field.
func (v *visit) metadata(ctx context.Context, at *point) metadata.MD {
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		md = metadata.MD{}
	}
	for _, key := range []string{metaCode, metaMessage} {
		md.Delete(key) // it is ours alone
	}
	for key, value := range map[string]string{metaPoint: at.name, metaID: v.id, metaParent: v.parent} {
		if md.Delete(key); value != "" {
			md.Set(key, printable(value))
		}
	}
	return md
}

// exempt reports whether what the call is about must not be refused, because it
// serves a plugin, which would never come back: not by its own plugin whatever that
// says, and not by others for not being there.
func (v *visit) exempt(p *plugin, err error) bool {
	id := v.call.object.identity(v.now)
	if v.serves(p, id) {
		return true
	}
	var no *refusal
	return !errors.As(err, &no) && v.servesAny(id)
}

// refuse is the status with which a plugin ends a call.
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
