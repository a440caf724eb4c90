package lda

import (
	"slices"
	"sort"

	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// rowTokens is the number of tokens per row of the table of assignments. Each document starts a new row, so that only
// one slot writes a row. On 20 Newsgroups, 6% of the values are unused.
const rowTokens = 32

// order determines the documents that a slot processes in a clock, and the rows of their tokens' topics.
type order struct {
	parts [][]int32 // by clock of a pass: its documents, increasing
	ends  [][]int   // by clock of a pass: number of tokens in its documents up to and including the i-th
	rows  []int     // by document: its first row; the last entry is the number of rows
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

// documents returns a share's documents in a clock of a pass. Shares have about the same number of tokens. For any
// number of shares, each document belongs to exactly one share. It belongs to one clock of a pass even if the shares
// change during the pass.
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
