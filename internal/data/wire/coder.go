package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// coder encodes or decodes the fields of a message in order, so that one description of a message serves both
// directions. Integers are varints, signed ones in zigzag encoding, as in package encoding/binary. A text is its length
// and its bytes; a list is its length and its items. After an error, a coder reads nothing more. Encoding does not
// modify the message: other goroutines may be reading the same view.
type coder struct {
	b       []byte // written so far, or not read yet
	reading bool
	err     error
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrPayload}, args...)...)
	}
	c.b = nil
}

// done returns the error of a decoded message, including that of trailing bytes.
func (c *coder) done() error {
	if c.err == nil && len(c.b) > 0 {
		c.fail("%d extra bytes follow its end", len(c.b))
	}
	return c.err
}

func (c *coder) uvarint(v uint64) uint64 {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, v)
		return v
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail("it ends within a number")
		return 0
	}
	c.b = c.b[n:]
	return v
}

// count codes an unsigned number.
func count[N ~uint32 | ~uint64](c *coder, v *N) {
	x := c.uvarint(uint64(*v))
	if !c.reading {
		return
	}
	if *v = N(x); uint64(*v) != x {
		c.fail("number %d is too large", x)
	}
}

// number codes a signed number.
func number[N ~int | ~int32 | ~int64](c *coder, v *N) {
	u := c.uvarint(uint64(*v)<<1 ^ uint64(int64(*v)>>63))
	if !c.reading {
		return
	}
	x := int64(u>>1) ^ -int64(u&1)
	if *v = N(x); int64(*v) != x {
		c.fail("number %d is too large", x)
	}
}

func (c *coder) float(v *float64) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint64(c.b, math.Float64bits(*v))
		return
	}
	if len(c.b) < 8 {
		c.fail("it ends within a number")
		return
	}
	*v, c.b = math.Float64frombits(binary.LittleEndian.Uint64(c.b)), c.b[8:]
}

// flags codes up to eight booleans in a byte, the first in the lowest bit. It rejects unknown bits.
func (c *coder) flags(v ...*bool) {
	if !c.reading {
		var f byte
		for i, is := range v {
			if *is {
				f |= 1 << i
			}
		}
		c.b = append(c.b, f)
		return
	}
	if len(c.b) == 0 {
		c.fail("it ends within its flags")
		return
	}
	f := c.b[0]
	c.b = c.b[1:]
	if f>>len(v) != 0 {
		c.fail("unknown flags %#x", f)
		return
	}
	for i, is := range v {
		*is = f&(1<<i) != 0
	}
}

func (c *coder) text(v *string) {
	n := c.uvarint(uint64(len(*v)))
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	if n > uint64(len(c.b)) {
		c.fail("it ends within a string of %d bytes", n)
		return
	}
	*v, c.b = string(c.b[:n]), c.b[n:]
}

// list codes a list; an empty one is read as nil.
func list[T any](c *coder, v *[]T, each func(c *coder, item *T)) {
	n := c.uvarint(uint64(len(*v)))
	if !c.reading {
		for i := range *v {
			each(c, &(*v)[i])
		}
		return
	}
	if n > uint64(len(c.b)) { // an item has at least one byte
		c.fail("it ends within a list of %d elements", n)
		return
	}
	*v = nil
	for range n {
		var item T
		each(c, &item)
		if c.err != nil {
			return
		}
		*v = append(*v, item)
	}
}

// optional codes a value that may be absent.
func optional[T any](c *coder, v **T, each func(c *coder, item *T)) {
	there := *v != nil
	c.flags(&there)
	if c.reading {
		if *v = nil; there {
			*v = new(T)
		}
	}
	if there {
		each(c, *v)
	}
}

// numbers codes a list of signed numbers.
func numbers[N ~int | ~int32 | ~int64](c *coder, v *[]N) { list(c, v, number[N]) }

// slot codes a slot's number.
func (c *coder) slot(v *perdure.Slot) {
	if number(c, v); *v < 0 {
		c.fail("invalid slot %d", *v)
	}
}

// shard codes a shard's number.
func (c *coder) shard(v *perdure.ShardID) {
	if number(c, v); *v < 0 {
		c.fail("invalid shard %d", *v)
	}
}

// codeBinary encodes or decodes the payloads of control frames that are not JSON. It reports whether v is one of them.
func codeBinary(c *coder, v any) (known bool) {
	switch v := v.(type) {
	case *protocol.View:
		c.view(v)
	case *protocol.ViewDelta:
		c.viewDelta(v)
	case *protocol.ServerDelta:
		c.serverDelta(v)
	case *protocol.WorkerDelta:
		c.workerDelta(v)
	case protocol.View: // for encoding
		c.view(&v)
	case protocol.ViewDelta:
		c.viewDelta(&v)
	case protocol.ServerDelta:
		c.serverDelta(&v)
	case protocol.WorkerDelta:
		c.workerDelta(&v)
	default:
		return false
	}
	return true
}
