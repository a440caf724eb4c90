package updatelog

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// BenchmarkLog measures the whole path of the log on an embedded server, with both sync modes: appending entries until
// they are durable, and replaying them.
func BenchmarkLog(b *testing.B) {
	for _, sync := range []Sync{SyncInterval, SyncAlways} {
		for _, size := range []int{1 << 20, 64 << 10} {
			w := newServerBackend(b, sync)
			l := open1(b, w)
			name := fmt.Sprintf("sync=%s/size=%dKiB", sync, size>>10)
			b.Run("append/"+name, func(b *testing.B) { benchAppend(b, l, size) })
			b.Run("replay/"+name, func(b *testing.B) { benchReplay(b, l, size) })
		}
	}
}

func benchAppend(b *testing.B, l Log, size int) {
	entry := [][]byte{[]byte(pattern(1, size))}
	b.SetBytes(int64(size))
	var all sync.WaitGroup
	for range b.N { // b.Loop would not include the wait for the last entry
		all.Add(1)
		must(b, l.Append(b.Context(), 1, entry, func(_ Position, err error) {
			if err != nil {
				b.Error(err)
			}
			all.Done()
		}))
	}
	all.Wait()
}

// benchReplay reads the log from the start, repeatedly, until it has read enough.
func benchReplay(b *testing.B, l Log, size int) {
	b.SetBytes(int64(size))
	for left := b.N; left > 0; {
		ctx, cancel := context.WithCancel(b.Context())
		err := l.Read(ctx, 1, Oldest, func(Entry) error {
			if left--; left == 0 {
				return errEnough
			}
			return nil
		}, func(Position) { cancel() })
		if err != errEnough && ctx.Err() == nil {
			b.Fatal(err)
		}
		cancel()
	}
}
