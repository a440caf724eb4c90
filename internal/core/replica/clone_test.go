package replica

import (
	"reflect"
	"sync"
	"unsafe"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// cloneOf makes a deep copy of a value, so that an explorer can continue from it in several ways. Immutable parts are
// shared: readers, views and jobs.
func cloneOf[T any](r *T) *T {
	c := cloner{pointers: map[unsafe.Pointer]reflect.Value{}, slices: map[unsafe.Pointer]reflect.Value{}}
	n := *r
	c.fix(reflect.ValueOf(&n).Elem())
	return &n
}

type cloner struct {
	pointers map[unsafe.Pointer]reflect.Value // copies, by their originals
	slices   map[unsafe.Pointer]reflect.Value
}

var (
	shared = map[reflect.Type]bool{
		reflect.TypeFor[*Reader]():          true,
		reflect.TypeFor[*protocol.View]():   true,
		reflect.TypeFor[*perdure.JobSpec](): true,
	}
	flat sync.Map // by reflect.Type: whether it contains nothing to follow; cases run in parallel
)

// isFlat reports whether assigning a value of the type copies it completely.
func isFlat(t reflect.Type) bool {
	if known, ok := flat.Load(t); ok {
		return known.(bool)
	}
	is := false
	switch t.Kind() {
	case reflect.Pointer:
		is = shared[t]
	case reflect.Slice, reflect.Map:
	case reflect.Array:
		is = isFlat(t.Elem())
	case reflect.Struct:
		is = true
		for i := range t.NumField() {
			is = is && isFlat(t.Field(i).Type)
		}
	default: // numbers, strings, functions; an interface holds a shared value
		is = true
	}
	flat.Store(t, is)
	return is
}

// fix replaces whatever v, which was assigned from another value, shares with it.
func (c *cloner) fix(v reflect.Value) {
	if isFlat(v.Type()) {
		return
	}
	if !v.CanSet() { // an unexported field
		v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	}
	switch v.Kind() {
	case reflect.Pointer:
		c.fixPointer(v)
	case reflect.Slice:
		c.fixSlice(v)
	case reflect.Map:
		if !v.IsNil() {
			n := reflect.MakeMapWithSize(v.Type(), v.Len())
			for k, e := range v.Seq2() {
				at := reflect.New(e.Type()).Elem()
				at.Set(e)
				c.fix(at)
				n.SetMapIndex(k, at)
			}
			v.Set(n)
		}
	case reflect.Array:
		for i := range v.Len() {
			c.fix(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			c.fix(v.Field(i))
		}
	}
}

func (c *cloner) fixPointer(v reflect.Value) {
	if v.IsNil() {
		return
	}
	if n, ok := c.pointers[v.UnsafePointer()]; ok {
		v.Set(n)
		return
	}
	n := reflect.New(v.Type().Elem())
	n.Elem().Set(v.Elem())
	c.pointers[v.UnsafePointer()] = n
	v.Set(n)
	c.fix(n.Elem())
}

func (c *cloner) fixSlice(v reflect.Value) {
	if v.Cap() == 0 {
		return
	}
	if n, ok := c.slices[v.UnsafePointer()]; ok && n.Type() == v.Type() && n.Cap() >= v.Len() {
		v.Set(n.Slice(0, v.Len()))
		return
	}
	n := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	reflect.Copy(n, v)
	c.slices[v.UnsafePointer()] = n
	v.Set(n)
	if isFlat(v.Type().Elem()) {
		return
	}
	for i := range n.Len() {
		c.fix(n.Index(i))
	}
}
