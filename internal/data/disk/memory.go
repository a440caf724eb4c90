package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"syscall"
)

// ErrCrashed is returned by every operation of a Memory from the step that FailAfter selected on, and by files that
// were open during a Crash.
var ErrCrashed = errors.New("the disk has crashed")

// Memory is a file system in memory that can crash. It distinguishes durable state from unsynced state: the bytes of a
// file since its last Sync, and the creations, renames and removals in a directory since its last SyncDir. Directories
// are durable once created. Its locks are not files; they belong to one process, so Crash and FailAfter(0), at which
// that process dies, release them. Memory is safe for concurrent use.
//
// Its steps are the operations that change something: MkdirAll, Create, Write, Sync, Rename, Link, Remove and SyncDir.
// A test that crashes at every step calls FailAfter(1), FailAfter(2), and so on until no operation fails, and calls
// Crash after each.
type Memory struct {
	mu     sync.Mutex // guards all fields below and all inodes
	dirs   map[string]*memDir
	steps  int // steps so far
	failAt int // the first step to fail; 0: none
	dead   bool
	boots  int   // number of crashes; files opened before the last one are dead
	limit  int64 // max bytes in all files; 0: no limit
	locks  map[string]*memLock
}

type memDir struct {
	entries map[string]*inode // visible state
	durable map[string]*inode // state on the platter
	pending []change          // durable + all of pending = entries
}

// A change is one creation, rename or removal. A crash keeps or loses it as a unit.
type change struct {
	remove string // may be ""
	set    string // may be ""
	node   *inode
}

func (c change) apply(entries map[string]*inode) {
	if c.remove != "" {
		delete(entries, c.remove)
	}
	if c.set != "" {
		entries[c.set] = c.node
	}
}

type inode struct {
	data      []byte
	durable   []byte
	truncated bool // since the last Sync, so that data need not extend durable
}

// NewMemory returns an empty file system with the directories "/" and ".".
func NewMemory() *Memory {
	m := &Memory{dirs: map[string]*memDir{}, locks: map[string]*memLock{}}
	m.mkdir("/")
	m.mkdir(".")
	return m
}

func (m *Memory) mkdir(dir string) {
	m.dirs[dir] = &memDir{entries: map[string]*inode{}, durable: map[string]*inode{}}
}

// FailAfter makes the nth step from now and every later operation fail with ErrCrashed and change nothing, as if the
// process had died there. FailAfter(0) models its successor on a machine that stayed up: all operations work again, and
// no data is lost.
func (m *Memory) FailAfter(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead, m.failAt = false, 0
	if n > 0 {
		m.failAt = m.steps + n
	} else {
		clear(m.locks)
	}
}

// SetLimit makes writes fail with syscall.ENOSPC if all files together would exceed the given number of bytes; 0
// removes the limit.
func (m *Memory) SetLimit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
}

// Crash simulates a power failure and a restart. rng selects which unsynced data is kept: of each directory's changes
// all, none, the first few or any subset; of each file's bytes a prefix, whose end may read as zeros. Open files are
// dead afterwards.
func (m *Memory) Crash(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead, m.failAt = false, 0
	m.boots++
	clear(m.locks)
	seen := map[*inode]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.dirs)) {
		d := m.dirs[name]
		for _, c := range survivors(rng, d.pending) {
			c.apply(d.durable)
		}
		d.pending = nil
		d.entries = maps.Clone(d.durable)
		for _, file := range slices.Sorted(maps.Keys(d.entries)) {
			if n := d.entries[file]; !seen[n] {
				seen[n] = true
				n.crash(rng)
			}
		}
	}
}

func survivors(rng *rand.Rand, pending []change) []change {
	switch rng.IntN(4) {
	case 0:
		return nil
	case 1:
		return pending
	case 2:
		return pending[:rng.IntN(len(pending)+1)]
	}
	return slices.DeleteFunc(slices.Clone(pending), func(change) bool { return rng.IntN(2) == 0 })
}

func (n *inode) crash(rng *rand.Rand) {
	base := n.durable
	if n.truncated && rng.IntN(2) == 0 {
		base = nil
	}
	kept := slices.Clone(base)
	if !n.truncated || base == nil {
		tail := slices.Clone(n.data[len(base):])
		tail = tail[:rng.IntN(len(tail)+1)]
		if rng.IntN(2) == 0 { // the size was written, but not all blocks
			clear(tail[rng.IntN(len(tail)+1):])
		}
		kept = append(kept, tail...)
	}
	n.data, n.durable, n.truncated = kept, kept, false
}

// step counts a change and returns an error if it must fail.
func (m *Memory) step() error {
	m.steps++
	if m.failAt > 0 && m.steps >= m.failAt {
		m.dead = true
	}
	return m.alive()
}

func (m *Memory) alive() error {
	if m.dead {
		return ErrCrashed
	}
	return nil
}

func failed(op, filePath string, err error) error {
	return wrap(&fs.PathError{Op: op, Path: filePath, Err: err})
}

// lookup returns the directory of a path, which must exist, and the name in it.
func (m *Memory) lookup(filePath string) (*memDir, string, error) {
	filePath = path.Clean(filePath)
	d := m.dirs[path.Dir(filePath)]
	switch {
	case d == nil:
		return nil, "", fs.ErrNotExist
	case m.dirs[filePath] != nil:
		return nil, "", errors.New("is a directory")
	}
	return d, path.Base(filePath), nil
}

// MkdirAll implements FS.
func (m *Memory) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return failed("mkdir", dir, err)
	}
	for d := path.Clean(dir); m.dirs[d] == nil; d = path.Dir(d) {
		if parent := m.dirs[path.Dir(d)]; parent != nil && parent.entries[path.Base(d)] != nil {
			return failed("mkdir", dir, errors.New("a file with that name already exists"))
		}
		m.mkdir(d)
	}
	return nil
}

// Create implements FS.
func (m *Memory) Create(filePath string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.step()
	var d *memDir
	var name string
	if err == nil {
		d, name, err = m.lookup(filePath)
	}
	if err != nil {
		return nil, failed("create", filePath, err)
	}
	n := d.entries[name]
	if n == nil {
		n = &inode{}
		d.entries[name] = n
		d.pending = append(d.pending, change{set: name, node: n})
	}
	n.data, n.truncated = nil, true
	return &memFile{m: m, path: filePath, node: n, openedInBoot: m.boots}, nil
}

func (m *Memory) content(filePath string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.alive(); err != nil {
		return nil, failed("open", filePath, err)
	}
	d, name, err := m.lookup(filePath)
	if err == nil && d.entries[name] == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, failed("open", filePath, err)
	}
	return d.entries[name].data, nil
}

// ReadFile implements FS.
func (m *Memory) ReadFile(filePath string) ([]byte, error) {
	b, err := m.content(filePath)
	return bytes.Clone(b), err
}

// Open implements FS. The reader sees the file's current content.
func (m *Memory) Open(filePath string) (io.ReadCloser, error) {
	b, err := m.content(filePath)
	if err != nil {
		return nil, err
	}
	return memReader{bytes.NewReader(b)}, nil
}

type memReader struct{ *bytes.Reader }

func (memReader) Close() error { return nil }

// List implements FS.
func (m *Memory) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.alive(); err != nil {
		return nil, failed("list", dir, err)
	}
	dir = path.Clean(dir)
	d := m.dirs[dir]
	if d == nil {
		return nil, nil
	}
	names := slices.Collect(maps.Keys(d.entries))
	for sub := range m.dirs {
		if sub != dir && path.Dir(sub) == dir {
			names = append(names, path.Base(sub))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Rename implements FS.
func (m *Memory) Rename(oldPath, newPath string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, from, to, err := m.lookupPair(oldPath, newPath)
	switch {
	case err != nil:
		return failed("rename", fmt.Sprintf("%s to %s", oldPath, newPath), err)
	case from == to:
		return nil
	}
	d.change(change{remove: from, set: to, node: d.entries[from]})
	return nil
}

// Link implements FS.
func (m *Memory) Link(oldPath, newPath string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, from, to, err := m.lookupPair(oldPath, newPath)
	if err == nil && d.entries[to] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return failed("link", fmt.Sprintf("%s to %s", oldPath, newPath), err)
	}
	d.change(change{set: to, node: d.entries[from]})
	return nil
}

// lookupPair starts a step on a file and another name in its directory.
func (m *Memory) lookupPair(oldPath, newPath string) (d *memDir, from, to string, err error) {
	if err := m.step(); err != nil {
		return nil, "", "", err
	}
	d, from, err = m.lookup(oldPath)
	if err != nil {
		return nil, "", "", err
	}
	into, to, err := m.lookup(newPath)
	switch {
	case err != nil:
		return nil, "", "", err
	case d != into:
		return nil, "", "", errAcrossDirs
	case d.entries[from] == nil:
		return nil, "", "", fs.ErrNotExist
	}
	return d, from, to, nil
}

// change applies a change that the next SyncDir makes durable.
func (d *memDir) change(c change) {
	c.apply(d.entries)
	d.pending = append(d.pending, c)
}

// Remove implements FS.
func (m *Memory) Remove(filePath string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return failed("remove", filePath, err)
	}
	d, name, err := m.lookup(filePath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failed("remove", filePath, err)
	}
	if d.entries[name] != nil {
		delete(d.entries, name)
		d.pending = append(d.pending, change{remove: name})
	}
	return nil
}

// SyncDir implements FS.
func (m *Memory) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return failed("sync", dir, err)
	}
	d := m.dirs[path.Clean(dir)]
	if d == nil {
		return failed("sync", dir, fs.ErrNotExist)
	}
	d.durable, d.pending = maps.Clone(d.entries), nil
	return nil
}

// memLock is held while m.locks contains it.
type memLock struct {
	m            *Memory
	path, holder string
}

// Lock implements Locker.
func (m *Memory) Lock(filePath, holder string) (Lock, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.alive(); err != nil {
		return nil, failed("lock", filePath, err)
	}
	l := &memLock{m, path.Clean(filePath), holder}
	if other := m.locks[l.path]; other != nil {
		return nil, &LockedError{Path: filePath, Holder: other.holder}
	}
	m.locks[l.path] = l
	return l, nil
}

func (l *memLock) CheckHeld() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if err := l.m.alive(); err != nil {
		return failed("lock", l.path, err)
	}
	if l.m.locks[l.path] != l {
		return failed("lock", l.path, errReplaced)
	}
	return nil
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.locks[l.path] == l {
		delete(l.m.locks, l.path)
	}
	return nil
}

func (m *Memory) used() (bytes int64) {
	for _, d := range m.dirs {
		for _, n := range d.entries {
			bytes += int64(len(n.data))
		}
	}
	return bytes
}

// memFile is an open file. m.mu guards closed and the inode.
type memFile struct {
	m            *Memory
	path         string
	node         *inode
	openedInBoot int
	closed       bool
}

func (f *memFile) step() error {
	if err := f.m.step(); err != nil {
		return err
	}
	switch {
	case f.openedInBoot != f.m.boots:
		return ErrCrashed
	case f.closed:
		return fs.ErrClosed
	}
	return nil
}

func (f *memFile) Write(p []byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.step(); err != nil {
		return 0, failed("write", f.path, err)
	}
	var err error
	if room := f.m.limit - f.m.used(); f.m.limit > 0 && room < int64(len(p)) {
		p, err = p[:max(room, 0)], failed("write", f.path, syscall.ENOSPC)
	}
	f.node.data = append(f.node.data, p...)
	return len(p), err
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.step(); err != nil {
		return failed("sync", f.path, err)
	}
	f.node.durable, f.node.truncated = f.node.data, false
	return nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return failed("close", f.path, fs.ErrClosed)
	}
	f.closed = true
	return nil
}
