package plugins

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	lookupTimeout = 5 * time.Second
	learnTimeout  = 2 * time.Minute
	learnAgain    = 10 * time.Minute // to forget objects that were removed by another way
	learnRetry    = 5 * time.Second
)

// lookup asks the runtime about an object that was created before the package saw calls.
func (p *Plugins) lookup(ctx context.Context, o *object, id string) (made *fact, err error) {
	keep := p.facts.lookingUp()
	defer func() { made = keep(made) }()
	ctx, cancel := context.WithTimeout(ctx, budget(ctx, lookupTimeout))
	defer cancel()
	found, err := p.cfg.Lookup(ctx, *p.next.Load(), o.kind, id)
	if err != nil {
		return nil, err
	}
	m := cloneOf(found.Message.ProtoReflect())
	if o.parent != nil {
		above := p.facts.get(o.parent.kind, found.Parent)
		if above == nil {
			if above, err = p.lookup(ctx, o.parent, found.Parent); err != nil {
				return nil, err
			}
		}
		o.inherit(m, above.about, nil)
	}
	return p.newFact(o, found.ID, found.Parent, m), nil
}

// learn looks up all objects when the first plugin is registered, and from time to time after that,
// until ctx ends.
func (p *Plugins) learn(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.awake:
		case <-again:
		}
		if len(p.table.Load().plugins) == 0 {
			again = nil
			continue
		}
		if err := p.learnAll(ctx); err != nil {
			again = time.After(learnRetry)
		} else {
			again = time.After(learnAgain)
		}
	}
}

// learnAll looks up all objects without a fact, and forgets those that are gone.
func (p *Plugins) learnAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, learnTimeout)
	defer cancel()
	began := time.Now()
	learned := Learned{}
	var errs []error
	for _, kind := range p.program.order {
		known := p.facts.ids(kind)
		ids, err := p.cfg.List(ctx, *p.next.Load(), kind)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		there := map[string]bool{}
		for _, id := range ids {
			there[id] = true
			if known[id] {
				continue
			}
			_, err := p.lookup(ctx, p.program.objects[kind], id)
			if err != nil && status.Code(err) != codes.NotFound { // NotFound: it has just been removed
				errs = append(errs, err)
				continue
			}
			learned.Objects++
		}
		for id := range known {
			if there[id] {
				continue
			}
			// A list may lack what a runtime has that is gone. What clients asked for could not be learned again.
			if _, err := p.lookup(ctx, p.program.objects[kind], id); status.Code(err) == codes.NotFound {
				p.facts.remove(p.program.objects[kind], id)
			}
		}
	}
	p.identifyAll()
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil // the process ends
	}
	learned.Err, learned.Took = errors.Join(errs...), time.Since(began)
	if learned.Objects > 0 || learned.Err != nil {
		p.report(context.Background(), learned)
	}
	return learned.Err
}
