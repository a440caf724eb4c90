package lda

import (
	"slices"
	"sort"

	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// rowTokens is how many tokens' topics a row of the table of assignments has. A document begins with a row of its own,
// so that a row is one slot's: on 20 Newsgroups 6% of the values are of no token.
const rowTokens = 32

// order says which documents a slot goes through in a clock, and where their tokens' topics are.
type order struct {
	parts [][]int32 // by clock of a pass: its documents, rising
	ends  [][]int   // by clock of a pass: how many tokens its documents have up to the i-th one, that included
	rows  []int     // by document: its first row; and how many rows there are
}

func newOrder(d *dataset.Documents, seed uint64, clocks int) *order {
	o := &order{parts: make([][]int32, clocks), ends: make([][]int, clocks), rows: make([]int, d.Len()+1)}
	all := make([]int32, d.Len())
	for i := range all {
		all[i] = int32(i)
		o.rows[i+1] = o.rows[i] + (len(d.Document(i))+rowTokens-1)/rowTokens
	}
	api.Shuffle(all, api.Mix(seed))
	for p := range o.parts {
		for i := p; i < len(all); i += clocks {
			o.parts[p] = append(o.parts[p], all[i])
		}
		slices.Sort(o.parts[p])
		tokens := 0
		for _, doc := range o.parts[p] {
			tokens += len(d.Document(int(doc)))
			o.ends[p] = append(o.ends[p], tokens)
		}
	}
	return o
}

// documents returns a share's documents of a clock of a pass: of about as many tokens as any other's. Each document
// is in one share, however many there are, and in one clock of a pass, whatever the shares are in it.
func (o *order) documents(part int, share api.Share) []int32 {
	ends := o.ends[part]
	if len(ends) == 0 {
		return nil
	}
	all := ends[len(ends)-1]
	bound := func(rank int) int {
		return sort.Search(len(ends), func(i int) bool { return ends[i]*share.Of > all*rank })
	}
	to := len(ends)
	if share.Rank+1 < share.Of {
		to = bound(share.Rank + 1)
	}
	return o.parts[part][bound(share.Rank):to]
}
