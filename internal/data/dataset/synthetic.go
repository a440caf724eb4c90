package dataset

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// SyntheticPrefix is the prefix of the names of synthetic sets: for ratings, "synthetic:" and the factor.
const SyntheticPrefix = "synthetic:"

// markedPrefix is the prefix of the name of a set whose file is marked as synthetic.
const markedPrefix = "synthetic data in "

// MarkedName returns the name of a set whose file is marked as synthetic.
func MarkedName(path string) string { return markedPrefix + path }

// IsSynthetic reports whether a name is that of a synthetic set.
func IsSynthetic(name string) bool {
	return strings.HasPrefix(name, SyntheticPrefix) || strings.HasPrefix(name, markedPrefix)
}

// DefaultRatings is the set for an empty name: 205,183 ratings by 7,623 users of 2,239 items, generated in 5 ms.
const DefaultRatings = SyntheticPrefix + "0.002"

// The shape of the Netflix prize data.
const (
	netflixUsers   = 480_189
	netflixItems   = 17_770
	netflixRatings = 100_480_507
)

// The limits of the factor of SyntheticRatings: below the min there would be fewer ratings than users.
const minFactor, maxFactor = 1e-4, 1

func openSynthetic(factor string) (*Ratings, error) {
	f, err := strconv.ParseFloat(factor, 64)
	if err != nil {
		return nil, perdure.Usagef("invalid data %s%s: %q is not a number; choose %g to %g, as in synthetic:0.01",
			SyntheticPrefix, factor, factor, minFactor, float64(maxFactor))
	}
	return SyntheticRatings(f)
}

// SyntheticRatings generates ratings with the shape of the Netflix prize data, scaled by factor: about
// 100,480,507·factor ratings by 480,189·factor^⅔ users of 17,770·factor^⅓ items, so that every size has Netflix's
// density of 1.18%. The set does not depend on a job's seed.
//
// A rating is 3.6 + the biases of the user and the item + the product of their 10 hidden factors + noise of standard
// deviation 0.8, clipped to 1 … 5; so no model predicts held-out ratings with an RMSE much below 0.77. Users have
// between 0.2 and 2.6 times the mean number of ratings, and the share of the k-th most popular item falls with 1/√k.
func SyntheticRatings(factor float64) (*Ratings, error) {
	if !(factor >= minFactor && factor <= maxFactor) {
		return nil, perdure.Usagef("invalid size of synthetic data: %v times Netflix's; choose %g to %g, as in "+
			"synthetic:0.01", factor, minFactor, float64(maxFactor))
	}
	root := math.Cbrt(factor)
	users, items := int(math.Round(netflixUsers*root*root)), int(math.Round(netflixItems*root))
	s := newRatingGenerator(items)
	mean := netflixRatings * factor / float64(users)
	total := int(netflixRatings * factor)
	r := &Ratings{
		Name: fmt.Sprintf("synthetic ratings, %v of Netflix's size", factor), Users: users, Items: items,
		synthetic: true,
		Train:     RatingSplit{make([]int32, 0, total), make([]int32, 0, total), make([]float32, 0, total)},
	}
	for user := range users {
		s.user(r, int32(user), mean)
	}
	return r.finish()
}

// numFactors is the number of factors of a user or an item in a synthetic set.
const numFactors = 10

// factorVector contains the factors and the bias of a synthetic user or item.
type factorVector struct {
	factors [numFactors]float32
	bias    float32
}

// ratingGenerator generates synthetic ratings, user by user.
type ratingGenerator struct {
	items       []factorVector // per item
	popular     []int32        // items, most popular first
	lastRatedBy []int32        // per item: the last user who rated it, + 1
}

// The seeds of the parts of a synthetic set.
const (
	itemSeed = 1 << 60 * (iota + 1)
	userSeed
	orderSeed
)

func newRatingGenerator(items int) *ratingGenerator {
	s := &ratingGenerator{
		items: make([]factorVector, items), popular: make([]int32, items),
		lastRatedBy: make([]int32, items),
	}
	for i := range s.items {
		s.items[i] = newFactorVector(itemSeed + uint64(i))
		// Real catalogues are not ordered by popularity.
		j := int(mix(orderSeed+uint64(i)) % uint64(i+1))
		s.popular[i] = s.popular[j]
		s.popular[j] = int32(i)
	}
	return s
}

// newFactorVector draws a taste: a bias of standard deviation 0.35, and 10 factors whose scalar product with another
// taste's has a standard deviation of 0.7. The k-th factor contributes a share of 1/k of that variance, because
// preferences differ in weight.
func newFactorVector(seed uint64) (t factorVector) {
	state := mix(seed)
	for k := range t.factors {
		state += golden
		variance := 0.49 / (2.9289682539682538 * float64(k+1)) // of its product; the divisor is 1 + ½ + … + ⅒
		t.factors[k] = float32(math.Sqrt(math.Sqrt(variance)) * bell(mix(state)))
	}
	t.bias = float32(0.35 * bell(mix(state+golden)))
	return t
}

// bell converts random bits to a number with mean 0 and standard deviation 1, approximately normal: the sum of four
// uniform ones.
func bell(bits uint64) float64 {
	sum := bits&0xffff + bits>>16&0xffff + bits>>32&0xffff + bits>>48
	const deviation = 1 << 16 * 0.57735026918962576 // of the sum: √(4/12)
	return (float64(sum) - 2*(1<<16-1)) / deviation
}

// user adds the ratings of one user, each item at most once.
func (s *ratingGenerator) user(r *Ratings, user int32, mean float64) {
	own := newFactorVector(userSeed + uint64(user))
	state := mix(mix(userSeed+uint64(user)) + 1)
	draw := func() uint64 { state++; return mix(state) }
	x := unit(draw())
	n := int(mean*float64(0.2+float64(2.4*float64(x*x))) + unit(draw()))
	for range max(1, min(n, len(s.popular)/2)) {
		var item int32
		for {
			// Squaring gives the k-th of n items a share of about 1/(2√(k·n)).
			x := unit(draw())
			item = s.popular[int(float64(x*x)*float64(len(s.popular)))]
			if s.lastRatedBy[item] != user+1 {
				break
			}
		}
		s.lastRatedBy[item] = user + 1
		t := &s.items[item]
		value := 3.6 + own.bias + t.bias + float32(0.8*bell(draw()))
		for k, f := range own.factors {
			value += float32(f * t.factors[k])
		}
		r.add(user, item, min(max(value, 1), 5))
	}
}

// unit converts random bits to a number in [0, 1).
func unit(bits uint64) float64 { return float64(bits>>11) / (1 << 53) }
