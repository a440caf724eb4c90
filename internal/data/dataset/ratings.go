package dataset

import (
	"math"
	"os"
	"strings"
)

// Ratings are users' ratings of items, divided into training and test parts. The test part is about every tenth rating,
// chosen by a hash of its user and item alone, so that all programs and seeds hold out the same ratings.
type Ratings struct {
	Name        string  // file name, or "synthetic …"
	Users       int     // the highest user's number + 1
	Items       int     // the highest item's number + 1
	Mean        float64 // mean of the training ratings
	Deviation   float64 // their standard deviation; 1 if all are equal
	Train, Test RatingSplit

	UserNames, ItemNames []string // by number; nil if the file has numbers

	synthetic bool // determined by its name
}

// RatingSplit is one part of a set, with one rating per index of its columns, ordered by user. If a user rated an item
// twice, both ratings are in the same part.
type RatingSplit struct {
	User, Item []int32
	Value      []float32 // finite
}

// Len returns the number of ratings.
func (s *RatingSplit) Len() int { return len(s.Value) }

// Bytes returns the memory size of the set.
func (r *Ratings) Bytes() int64 { return 12 * int64(r.Train.Len()+r.Test.Len()) }

func (s *RatingSplit) add(user, item int32, value float32) {
	s.User = append(s.User, user)
	s.Item = append(s.Item, item)
	s.Value = append(s.Value, value)
}

// OpenRatings generates the synthetic set for a name such as "synthetic:0.01" (see SyntheticRatings), and otherwise
// reads the file at path. "" means DefaultRatings.
func OpenRatings(path string) (*Ratings, error) {
	if path == "" {
		path = DefaultRatings
	}
	if factor, ok := strings.CutPrefix(path, SyntheticPrefix); ok {
		return openSynthetic(factor)
	}
	return LoadRatings(path)
}

// maxID is the max number of a user or an item. Models have a row for every number up to the highest, so one mistyped
// number must not exhaust memory.
const maxID = 1<<24 - 1

// LoadRatings reads a file of lines "user,item,rating", plain or gzip-compressed. The separator may also be a tab,
// "::", ";" or blanks. Users and items are either whole numbers from 0 to 16,777,215, possibly with gaps, or names,
// which are numbered in order of appearance; the first line determines which. A rating is any finite number. A fourth
// column, such as a time, is ignored if every line has it. A first line of headings and empty lines are ignored also.
func LoadRatings(path string) (*Ratings, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return nil, &FileError{
			Path: path, Problem: "is a directory; choose the file with lines \"user,item,rating\"",
			Kind: ErrMissing,
		}
	}
	p := ratingParser{path: path, ratings: Ratings{Name: path}}
	if err := readBlocks(path, p.block); err != nil {
		return nil, err
	}
	r := &p.ratings
	r.UserNames, r.ItemNames = p.ids[0].names, p.ids[1].names
	switch total := r.Train.Len() + r.Test.Len(); {
	case total == 0:
		return nil, corrupt(path, "holds no ratings; write lines \"user,item,rating\"")
	case r.Train.Len() == 0 || r.Test.Len() == 0:
		return nil, corrupt(path, "has too few ratings to hold out every tenth one: %d", total)
	}
	if p.unsorted {
		r.Train.sortByUser(r.Users)
		r.Test.sortByUser(r.Users)
	}
	return r.finish()
}

// finish computes the values derived from the columns.
func (r *Ratings) finish() (*Ratings, error) {
	if r.Train.Len() > math.MaxInt32 {
		return nil, corrupt(r.Name, "holds %d ratings to train on; at most %d are accepted", r.Train.Len(),
			math.MaxInt32)
	}
	sum := 0.0
	for _, v := range r.Train.Value {
		sum += float64(v)
	}
	n := float64(r.Train.Len())
	r.Mean = sum / n
	squares := 0.0
	for _, v := range r.Train.Value {
		d := float64(v) - r.Mean
		squares += float64(d * d)
	}
	if r.Deviation = math.Sqrt(squares / n); r.Deviation == 0 {
		r.Deviation = 1
	}
	return r, nil
}

// add adds a rating to the part to which it belongs.
func (r *Ratings) add(user, item int32, value float32) {
	r.Users, r.Items = max(r.Users, int(user)+1), max(r.Items, int(item)+1)
	if heldOut(user, item) {
		r.Test.add(user, item, value)
	} else {
		r.Train.add(user, item, value)
	}
}

// heldOut reports whether a rating belongs to the test part.
func heldOut(user, item int32) bool {
	return mix(uint64(user)<<32|uint64(item)) < math.MaxUint64/10
}

// HeldOut reports whether the i-th example of a file without separate parts belongs to the test part: about every
// tenth.
func HeldOut(i int) bool { return mix(uint64(i)) < 1<<63/5 }

// partOf returns the part of the i-th example of such a file.
func partOf[T any](i int, train, test *T) *T {
	if HeldOut(i) {
		return test
	}
	return train
}

// mix is the output function of SplitMix64 (Steele, Lea, Flood 2014).
func mix(z uint64) uint64 {
	z += golden
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// golden is 2^64 divided by the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// sortByUser sorts by counting: the ratings of one user keep their order.
func (s *RatingSplit) sortByUser(users int) {
	next := make([]int32, users+1)
	for _, u := range s.User {
		next[u+1]++
	}
	for u := range users {
		next[u+1] += next[u]
	}
	sorted := RatingSplit{make([]int32, s.Len()), make([]int32, s.Len()), make([]float32, s.Len())}
	for i, u := range s.User {
		to := next[u]
		next[u]++
		sorted.User[to], sorted.Item[to], sorted.Value[to] = u, s.Item[i], s.Value[i]
	}
	*s = sorted
}
