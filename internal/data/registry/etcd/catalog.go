package etcd

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/perdure/perdure/internal/data/registry"
)

// The keys of a catalog, below its prefix. What a list reads is in one range; the documents of the jobs are elsewhere.
const (
	jobKeys   = "jobs/"  // and a name, a slash, and one of the following, or the holder's key
	factsKeys = "facts/" // and a name, a slash, and the keys of a registry but for the holder's
	recordKey = "job"
	stateKey  = "state"
	wishKey   = "wish"
)

// Catalog is a registry of many jobs in etcd, seen by one client.
type Catalog struct {
	r       *Registry // never acquired: it has the client, and patience
	root    string    // of all keys, with a slash at its end
	address string
	t       timing
}

// OpenCatalog opens the catalog at an address (see Parse), whose prefix all its jobs share. Nothing is asked of etcd
// yet, which may be away.
func OpenCatalog(ctx context.Context, address string) (*Catalog, error) {
	return openCatalogWith(ctx, address, usual)
}

func openCatalogWith(ctx context.Context, address string, t timing) (*Catalog, error) {
	r, err := openWith(ctx, address, t)
	if err != nil {
		return nil, err
	}
	return &Catalog{r: r, root: r.prefix, address: address, t: t}, nil
}

// keyOf is a key of a job's.
func (c *Catalog) keyOf(name, key string) string { return c.root + jobKeys + name + "/" + key }

// is compares that a job is the one that has a record.
func (c *Catalog) is(name string, record []byte) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(c.keyOf(name, recordKey)), "=", string(record))
}

// Create implements registry.Catalog.
func (c *Catalog) Create(ctx context.Context, name string, record []byte) error {
	if err := errors.Join(registry.CheckName(name), registry.CheckRecord(record)); err != nil {
		return err
	}
	key := c.keyOf(name, recordKey)
	return c.r.patiently(ctx, func(ctx context.Context) error {
		made, err := c.r.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, string(record))).Else(clientv3.OpGet(key)).Commit()
		if err != nil || made.Succeeded {
			return err
		}
		if bytes.Equal(made.Responses[0].GetResponseRange().Kvs[0].Value, record) {
			return nil // by a try of which nothing was heard
		}
		return decided(registry.ErrTaken)
	})
}

// List implements registry.Catalog. It is one range.
func (c *Catalog) List(ctx context.Context) (all []registry.Entry, err error) {
	err = c.r.patiently(ctx, func(ctx context.Context) error {
		all, err = c.entries(ctx, c.root+jobKeys)
		return err
	})
	return all, err
}

// Find implements registry.Catalog.
func (c *Catalog) Find(ctx context.Context, name string) (e registry.Entry, err error) {
	if err := registry.CheckName(name); err != nil {
		return e, err
	}
	err = c.r.patiently(ctx, func(ctx context.Context) error {
		all, err := c.entries(ctx, c.keyOf(name, ""))
		if err == nil && len(all) == 0 {
			return decided(registry.ErrNoJob)
		}
		if err == nil {
			e = all[0]
		}
		return err
	})
	return e, err
}

// entries are those below a prefix, which is that of all, or of one.
func (c *Catalog) entries(ctx context.Context, below string) (all []registry.Entry, err error) {
	found, err := c.r.client.Get(ctx, below, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	var e registry.Entry // those of a job follow one another
	end := func() {
		if e.Record != nil { // what is left of a job that was removed is none
			all = append(all, e)
		}
		e = registry.Entry{}
	}
	for _, kv := range found.Kvs {
		name, key, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), c.root+jobKeys), "/")
		if registry.CheckName(name) != nil {
			continue
		}
		if name != e.Name {
			end()
			e.Name = name
		}
		take(&e, key, kv)
	}
	end()
	slices.SortFunc(all, func(a, b registry.Entry) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func take(e *registry.Entry, key string, kv *mvccpb.KeyValue) {
	switch key {
	case recordKey:
		e.Record = kv.Value
	case stateKey:
		e.State = kv.Value
	case wishKey:
		e.Wish = kv.Value
	case holderKey:
		e.Holder = string(kv.Value)
	}
}

// Wish implements registry.Catalog.
func (c *Catalog) Wish(ctx context.Context, name string, record, wish []byte) error {
	if err := errors.Join(registry.CheckName(name), registry.CheckRecord(wish)); err != nil {
		return err
	}
	return c.r.patiently(ctx, func(ctx context.Context) error {
		put, err := c.r.client.Txn(ctx).If(c.is(name, record)).
			Then(clientv3.OpPut(c.keyOf(name, wishKey), string(wish))).Commit()
		if err == nil && !put.Succeeded {
			return decided(registry.ErrNoJob)
		}
		return err
	})
}

// Remove implements registry.Catalog. It is one transaction, and so is nobody's whose lease begins meanwhile.
func (c *Catalog) Remove(ctx context.Context, name string, record []byte) error {
	if err := registry.CheckName(name); err != nil {
		return err
	}
	holder, tried := c.keyOf(name, holderKey), false
	return c.r.patiently(ctx, func(ctx context.Context) error {
		gone, err := c.r.client.Txn(ctx).
			If(c.is(name, record), clientv3.Compare(clientv3.CreateRevision(holder), "=", 0)).
			Then(clientv3.OpDelete(c.keyOf(name, ""), clientv3.WithPrefix()),
				clientv3.OpDelete(c.root+factsKeys+name+"/", clientv3.WithPrefix())).
			Else(clientv3.OpGet(c.keyOf(name, recordKey)), clientv3.OpGet(holder)).Commit()
		again := tried
		tried = true
		if err != nil || gone.Succeeded {
			return err
		}
		is, held := gone.Responses[0].GetResponseRange().Kvs, gone.Responses[1].GetResponseRange().Kvs
		switch same := len(is) > 0 && bytes.Equal(is[0].Value, record); {
		case same && len(held) > 0:
			return c.r.held(held[0])
		case same:
			return errChanged // the lease has ended meanwhile
		case again:
			return nil // by a try of which nothing was heard
		}
		return decided(registry.ErrNoJob)
	})
}

// Open implements registry.Catalog.
func (c *Catalog) Open(ctx context.Context, name string) (registry.Post, error) {
	if _, err := c.Find(ctx, name); err != nil {
		return nil, err
	}
	p, err := c.post(ctx, name)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Catalog) post(ctx context.Context, name string) (*post, error) {
	r, err := openWith(ctx, c.address, c.t)
	if err != nil {
		return nil, err
	}
	r.shown += "/" + jobKeys + name
	r.prefix, r.holder = c.root+factsKeys+name+"/", c.keyOf(name, holderKey)
	return &post{Registry: r, state: c.keyOf(name, stateKey), wish: c.keyOf(name, wishKey)}, nil
}

// Close implements registry.Catalog.
func (c *Catalog) Close() error { return c.r.Close() }

// post is the registry of a job in a catalog.
type post struct {
	*Registry
	state, wish string // keys

	publishing sync.Mutex // guards what follows
	known      *lease     // whose state was seen at seen; nil: it is to be asked for
	seen       int64      // the revision of the state's key
}

// Publish implements registry.Post. Each state is put over the one that was seen before, so that a try which arrives
// late, and of which nothing was heard, is put over no later one.
func (p *post) Publish(ctx context.Context, state []byte) error {
	if err := errors.Join(p.usable(ctx), registry.CheckRecord(state)); err != nil {
		return err
	}
	p.publishing.Lock()
	defer p.publishing.Unlock()
	p.mu.Lock()
	l := p.lease
	p.mu.Unlock()
	if l == nil || l.over() {
		return registry.ErrLost
	}
	return p.patiently(ctx, func(ctx context.Context) error { return p.publish(ctx, l, state) })
}

// publish is one try.
func (p *post) publish(ctx context.Context, l *lease, state []byte) error {
	if p.known != l {
		found, err := p.client.Txn(ctx).Then(clientv3.OpGet(p.holder), clientv3.OpGet(p.state)).Commit()
		if err != nil {
			return err
		}
		holders, states := found.Responses[0].GetResponseRange().Kvs, found.Responses[1].GetResponseRange().Kvs
		if len(holders) == 0 || holders[0].CreateRevision != l.fence {
			l.end()
			return decided(registry.ErrLost)
		}
		p.known, p.seen = l, 0
		if len(states) > 0 {
			p.seen = states[0].ModRevision
		}
	}
	seen := p.seen
	p.known = nil // until it is known what becomes of this
	put, err := p.client.Txn(ctx).If(l.mine(), clientv3.Compare(clientv3.ModRevision(p.state), "=", seen)).
		Then(clientv3.OpPut(p.state, string(state))).Commit()
	if err != nil {
		return err
	}
	if !put.Succeeded {
		return errChanged
	}
	p.known, p.seen = l, put.Header.Revision
	return nil
}

// Wish implements registry.Post.
func (p *post) Wish(ctx context.Context) (wish []byte, err error) {
	err = p.patiently(ctx, func(ctx context.Context) error {
		wish = nil
		found, err := p.client.Get(ctx, p.wish)
		if err == nil && len(found.Kvs) > 0 {
			wish = found.Kvs[0].Value
		}
		return err
	})
	return wish, err
}
