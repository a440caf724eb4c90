package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/perdure/perdure/internal/data/registry"
)

// Load relies on this invariant: at every revision of etcd, each chunk that the head lists exists. It holds because
//
//   - every transaction that writes checks that the holder's key is the writer's own, so one process writes at a time,
//     in one Save at a time;
//   - a chunk is deleted only by a transaction that replaces the head with one that does not list it;
//   - a transaction that puts a head checks that the previous head is still the one after which the writer has seen or
//     put all chunks that the new head lists.
//
// So the chunks of a document that exceeds one transaction may be put one after another before its head: no process
// deletes them while the head is unchanged.

// attempt is one Save, including its retries.
type attempt struct {
	previous uint64
	head     head
	chunks   []chunk // distinct chunks; slices of the caller's document
	sent     bool    // the head was sent, and no answer was received
}

// knownState is the writer's knowledge of the registry.
type knownState struct {
	holder   int64  // revision that created the holder's key; 0: none
	revision uint64 // revision of the head; 0: none
	writeID  string // attempt that wrote the head
	chunks   map[string]bool
}

var (
	errFinal = errors.New("decided")
	// errChanged is returned by an attempt that finds the registry changed.
	errChanged = errors.New("another process has changed it in the meantime")
)

// finalError is an error that is a final answer and stops retries.
type finalError struct{ error }

func final(err error) error { return finalError{err} }

func (d finalError) Unwrap() error { return d.error }

func (d finalError) Is(target error) bool { return target == errFinal }

func (l *lease) Save(ctx context.Context, doc []byte, previous uint64) (revision uint64, err error) {
	l.saving.Lock()
	defer l.saving.Unlock()
	if err := l.r.checkOpen(ctx); err != nil {
		return 0, err
	}
	if len(doc) > maxBytes {
		return 0, errLarge
	}
	a := l.newAttempt(doc, previous)
	if l.ended() {
		return 0, a.lostError()
	}
	err = l.r.retry(ctx, func(ctx context.Context) error {
		revision, err = l.trySave(ctx, a)
		return err
	})
	unknown := err != nil && (!errors.Is(err, errFinal) || errors.Is(err, registry.ErrOutcomeUnknown))
	switch {
	case unknown:
		a.chunks = nil
		l.last = a
	case err == nil || l.last != nil && l.last.head.writeID == a.head.writeID:
		l.last = nil
	}
	return revision, err
}

// lostError returns the error of a Save whose lease has ended.
func (a *attempt) lostError() error {
	if a.sent {
		return registry.ErrOutcomeUnknown
	}
	return registry.ErrLost
}

// newAttempt returns the attempt to save a document. If the last Save has an unknown result and was identical, the
// attempt continues under its name: if either takes effect, both have succeeded.
func (l *lease) newAttempt(doc []byte, previous uint64) *attempt {
	a := &attempt{previous: previous, head: head{bytes: len(doc)}}
	seen := map[string]bool{}
	for _, c := range splitChunks(doc) {
		a.head.chunks = append(a.head.chunks, c.name)
		if !seen[c.name] {
			seen[c.name] = true
			a.chunks = append(a.chunks, c)
		}
	}
	if l.last != nil && l.last.previous == previous && slices.Equal(l.last.head.chunks, a.head.chunks) {
		a.head.writeID, a.sent = l.last.head.writeID, l.last.sent
		return a
	}
	l.saves++
	a.head.writeID = fmt.Sprintf("%d.%d", l.fence, l.saves)
	return a
}

// trySave makes one attempt to save. If it does not know the state of the registry, it reads that first, because an
// earlier attempt without an answer may have succeeded.
func (l *lease) trySave(ctx context.Context, a *attempt) (uint64, error) {
	if l.known == nil || l.known.revision != a.previous {
		if err := l.readState(ctx); err != nil {
			return 0, err
		}
	}
	k := l.known
	switch {
	case k.writeID == a.head.writeID:
		return k.revision, nil
	case k.holder != l.fence:
		l.end()
		// A head that is still the previous one proves that no attempt has taken effect, and none will.
		a.sent = a.sent && k.revision != a.previous
		return 0, final(a.lostError())
	case k.revision != a.previous:
		return 0, final(
			fmt.Errorf("%w: the record is at revision %d; the save expects %d", registry.ErrConflict, k.revision,
				a.previous),
		)
	}
	l.known = nil // unknown until the result is known
	sealed := a.head.encode()
	room := l.r.txnBytes - len(sealed)
	fresh := slices.DeleteFunc(slices.Clone(a.chunks), func(c chunk) bool { return k.chunks[c.name] })
	for {
		ops, rest := l.putOps(fresh, room)
		if len(rest) == 0 {
			return l.replaceHead(ctx, a, k, sealed, ops)
		}
		put, err := l.r.client.Txn(ctx).If(l.leaseValid()).Then(ops...).Commit()
		if err != nil {
			return 0, err
		}
		if !put.Succeeded {
			return 0, errChanged
		}
		fresh = rest
	}
}

// readState reads the state of the registry.
func (l *lease) readState(ctx context.Context) error {
	l.known = nil
	p := l.r.prefix
	found, err := l.r.client.Txn(ctx).Then(clientv3.OpGet(p+holderKey), clientv3.OpGet(p+headKey),
		clientv3.OpGet(p+chunkKeys, clientv3.WithPrefix(), clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return err
	}
	k := &knownState{chunks: map[string]bool{}}
	for _, kv := range found.Responses[0].GetResponseRange().Kvs {
		k.holder = kv.CreateRevision
	}
	for _, kv := range found.Responses[1].GetResponseRange().Kvs {
		h, err := decodeHead(kv.Value)
		if err != nil {
			return corruptError{err}
		}
		k.revision, k.writeID = uint64(kv.ModRevision), h.writeID
	}
	for _, kv := range found.Responses[2].GetResponseRange().Kvs {
		k.chunks[strings.TrimPrefix(string(kv.Key), p+chunkKeys)] = true
	}
	l.known = k
	return nil
}

// leaseValid returns the comparison that this lease is still valid.
func (l *lease) leaseValid() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(l.r.prefix+holderKey), "=", l.fence)
}

// putOps returns the operations that put as many chunks as fit into a transaction, and the remaining chunks.
func (l *lease) putOps(chunks []chunk, room int) (ops []clientv3.Op, rest []chunk) {
	for i, c := range chunks {
		if room -= len(c.data); len(ops) == maxTxnOps || room < 0 && i > 0 {
			return ops, chunks[i:]
		}
		ops = append(ops, clientv3.OpPut(l.r.prefix+chunkKeys+c.name, string(c.data)))
	}
	return ops, nil
}

// replaceHead puts the head with the last of its chunks, and deletes unused ones.
func (l *lease) replaceHead(
	ctx context.Context,
	a *attempt,
	k *knownState,
	sealed []byte,
	ops []clientv3.Op,
) (uint64, error) {
	key := l.r.prefix + headKey
	ops = append(ops, clientv3.OpPut(key, string(sealed)))
	for _, c := range a.chunks {
		delete(k.chunks, c.name) // the remaining chunks are unused
	}
	for name := range k.chunks {
		if len(ops) > maxTxnOps { // the next Save deletes the rest
			break
		}
		delete(k.chunks, name)
		ops = append(ops, clientv3.OpDelete(l.r.prefix+chunkKeys+name))
	}
	put, err := l.r.client.Txn(ctx).
		If(l.leaseValid(), clientv3.Compare(clientv3.ModRevision(key), "=", int64(a.previous))).Then(ops...).Commit()
	if err != nil {
		a.sent = true
		return 0, err
	}
	if !put.Succeeded {
		return 0, errChanged
	}
	k.revision, k.writeID = uint64(put.Header.Revision), a.head.writeID
	for _, c := range a.chunks {
		k.chunks[c.name] = true
	}
	l.known = k
	return k.revision, nil
}
