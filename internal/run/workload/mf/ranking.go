package mf

import (
	"context"
	"math"

	"github.com/perdure/perdure/internal/run/workload/api"
)

// maxRankedUsers is the max number of users whose lists are ranked to evaluate a model. These are users with held-out
// items, spread over the whole data set, and always the same.
const maxRankedUsers = 2000

// percentileRank returns the mean position of held-out items in their user's list of all items that the user's training
// ratings do not include: 0 is first, 1 is last, and 0.5 is the result of chance (Hu, Koren, Volinsky 2008, weighted by
// the counts).
func (a *alternating) percentileRank(ctx context.Context, t api.Tables) (float64, error) {
	items, users := &a.eval[1], &a.eval[0]
	if err := items.all(ctx, t, a.factors, 0, a.data.Items); err != nil {
		return 0, err
	}
	test := &a.data.Test
	var intervals [][2]int // held-out items of each user
	for at := 0; at < test.Len(); {
		end := at + 1
		for end < test.Len() && test.User[end] == test.User[at] {
			end++
		}
		intervals, at = append(intervals, [2]int{at, end}), end
	}
	if n := len(intervals); n > maxRankedUsers {
		for i := range maxRankedUsers {
			intervals[i] = intervals[i*n/maxRankedUsers]
		}
		intervals = intervals[:maxRankedUsers]
	}
	sum, weights := 0.0, 0.0
	scores := make([]float32, a.data.Items)
	for _, interval := range intervals {
		user := int(test.User[interval[0]])
		if err := users.all(ctx, t, a.factors, user, user+1); err != nil {
			return 0, err
		}
		a.scores(scores, user, users, items)
		for i := interval[0]; i < interval[1]; i++ {
			w := float64(test.Value[i])
			sum += float64(w * rankOf(scores, int(test.Item[i])))
			weights += w
		}
	}
	if weights == 0 {
		return math.NaN(), nil
	}
	return sum / weights, nil
}

// scores writes the model's score of each item for a user. Items that the user was trained on get -Inf.
func (a *alternating) scores(scores []float32, user int, users, items *rows) {
	for i := range scores {
		scores[i] = dot(users.wide, items.wide[i*a.stride:][:a.stride])
	}
	s := a.sides[0]
	for _, item := range s.other[s.starts[user]:s.starts[user+1]] {
		scores[item] = float32(math.Inf(-1))
	}
}

// rankOf returns the relative position of an item in a list. Items with equal scores share their positions.
func rankOf(scores []float32, item int) float64 {
	before, same, all := 0, 0, 0
	own := scores[item]
	for _, v := range scores {
		if math.IsInf(float64(v), -1) {
			continue
		}
		all++
		if v > own {
			before++
		} else if v == own {
			same++
		}
	}
	if all < 2 {
		return 0
	}
	return (float64(before) + float64(max(same-1, 0))/2) / float64(all-1)
}
