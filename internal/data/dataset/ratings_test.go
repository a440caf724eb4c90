package dataset

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

func writeData(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// manyLines returns valid ratings: 20 users of 10 items.
func manyLines() string {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "%d,%d,%g\n", i/10, i%10, float64(i)/8-10)
	}
	return b.String()
}

// triples returns a split's ratings as text, sorted.
func triples(s *RatingSplit) (list []string) {
	for i, v := range s.Value {
		list = append(list, fmt.Sprint(s.User[i], ",", s.Item[i], ",", v))
	}
	slices.Sort(list)
	return list
}

// TestRatingsForms reads the same ratings in all accepted forms.
func TestRatingsForms(t *testing.T) {
	plain := manyLines()
	want, err := LoadRatings(writeData(t, "ratings.csv", plain))
	if err != nil {
		t.Fatal(err)
	}
	if want.Users != 20 || want.Items != 10 || want.Train.Len()+want.Test.Len() != 200 || want.Test.Len() < 10 ||
		want.Test.Len() > 35 {
		t.Fatalf("%d users, %d items, %d + %d ratings", want.Users, want.Items, want.Train.Len(), want.Test.Len())
	}
	lines := strings.SplitAfter(plain, "\n")
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	for name, text := range map[string]string{
		"header.csv":   "userId,movieId,rating\n" + plain,
		"mark.csv":     "\xef\xbb\xbfuser,item,rating\n" + plain,
		"four.csv":     "userId,movieId,rating,timestamp\n" + strings.ReplaceAll(plain, "\n", ",964982703\n"),
		"crlf.csv":     strings.ReplaceAll(plain, "\n", "\r\n"),
		"unended.csv":  strings.TrimSuffix(plain, "\n"),
		"empty.csv":    "\n" + strings.ReplaceAll(plain, "\n", "\n\n"),
		"shuffled.csv": strings.Join(lines, ""),
		"tabs.tsv":     strings.ReplaceAll(plain, ",", "\t"),
		"ratings.dat":  strings.ReplaceAll(plain, ",", "::"),
		"blanks.txt":   strings.ReplaceAll(plain, ",", "  "),
		"semicolons":   strings.ReplaceAll(plain, ",", ";"),
		"spaces.csv":   strings.ReplaceAll(plain, ",", " , "),
		"four.dat":     strings.ReplaceAll(strings.ReplaceAll(plain, ",", "::"), "\n", "::978300760\n"),
		"packed.csv":   string(gz(t, []byte(plain))),
		"ratings.gz":   string(gz(t, []byte(plain))),
	} {
		got, err := LoadRatings(writeData(t, name, text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.IsSorted(got.Train.User) || !slices.IsSorted(got.Test.User) {
			t.Errorf("%s: not ordered by user", name)
		}
		if !slices.Equal(triples(&got.Train), triples(&want.Train)) ||
			!slices.Equal(triples(&got.Test), triples(&want.Test)) {
			t.Errorf("%s: different ratings", name)
		}
		if got.Users != 20 || got.Items != 10 || math.Abs(got.Mean-want.Mean) > 1e-12 {
			t.Errorf("%s: %d users, %d items, mean %v", name, got.Users, got.Items, got.Mean)
		}
	}
}

func TestRatingsRefuses(t *testing.T) {
	good := manyLines()
	packed := string(gz(t, []byte(good)))
	for _, c := range []struct {
		name, text string
		want       string
	}{
		{"empty", "", "is empty"},
		{"header only", "user,item,rating\n", "holds no ratings"},
		{"blank", "\n\n", "holds no ratings"},
		{"few", "1,2,3\n", "has too few ratings to hold out every tenth one: 1"},
		{"nan", good + "1,2,NaN\n", `line 201: rating "NaN" is not a finite number`},
		{"inf", good + "1,2,-Inf\n" + good, `line 201: rating "-Inf"`},
		{"overflow", good + "1,2,1e39\n", `line 201: rating "1e39"`},
		{"mistyped first", "ann,Heat,4x\n" + good, `line 1: rating "4x" is not a finite number`},
		{"nothing first", "ann,Heat,\n" + good, `line 1: rating "" is not a finite number`},
		{"no rating", good + "1,2,\n", `line 201: rating "" is not`},
		{"words", good + "1,2,good\n", `line 201: rating "good"`},
		{"negative user", good + "-1,2,3\n", `line 201: user "-1" is not a whole number from 0 to 16777215`},
		{"negative item", good + "1,-2,3\n", `line 201: item "-2" is not`},
		{"overlarge user", good + "16777216,2,3\n", `line 201: user "16777216" is not`},
		{"overlarge item", good + "1,99999999999999999999,3\n", `line 201: item "99999999999999999999"`},
		{"fraction", good + "1.5,2,3\n", `line 201: user "1.5"`},
		{"second header", good + "user,item,rating\n", `line 201: rating "rating"`},
		{"two columns", good + "1,2\n", "line 201: 2 columns"},
		{"two columns first", "1,2\n", "line 1: 2 columns"},
		{"four once", good + "1,2,3,4\n", "line 201: 4 columns"},
		{"four then three", "1,2,3,4\n1,2,3\n", "line 2: 3 columns"},
		{"four then five", "1,2,3,4\n1,2,3,4\n1,2,3,4,5\n", "line 3: 5 columns"},
		{"tabs later", good + "1\t2\t3\n", "line 201: 1 columns"},
		{"names later", good + "ann,2,3\n", `line 201: user "ann" is not a whole number from 0 to 16777215, but`},
		{"no name", "ann,b,3\n,b,4\n", "line 2: user has no name"},
		{"long name", "ann,b,3\nann," + strings.Repeat("b", 201) + ",4\n", "use at most 200 bytes"},
		{"torn name", "ann,b,3\n\xff,b,4\n", "is not a valid name"},
		{"quotes", "ann,b,3\n\"ann,b,4\n", "line 2: unbalanced quotes"},
		{"headings only", "user,item,rating\nuser,item,rating\n", `line 2: rating "rating"`},
		{"long line", good + strings.Repeat("1", blockBytes) + "\n", "line of more than"},
		{"not gzip.gz", good, "not a gzip file"},
		{"cut.gz", packed[:len(packed)-20], "truncated"},
		{"cut at the end", packed[:len(packed)-2], "truncated"},
		{"damaged", packed[:len(packed)-6] + "\x00\x00" + packed[len(packed)-4:], "checksum"},
	} {
		path := writeData(t, c.name, c.text)
		_, err := LoadRatings(path)
		var at *FileError
		if !errors.As(err, &at) || at.Path != path || !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: error %v", c.name, err)
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, c.want) || strings.Contains(msg, "\n") ||
			len(msg) > len(path)+200 {
			t.Errorf("%s: error %q: want one line with %q", c.name, msg, c.want)
		}
	}
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                        "is a directory; choose the file",
		filepath.Join(dir, "none"): "no such file",
	} {
		if _, err := OpenRatings(path); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestFastAndSlowAgree: lines that fast accepts have the same result with slow.
func TestFastAndSlowAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(
			rapid.StringMatching(`[0-9]{1,10},[0-9]{1,10},-?[0-9]{0,10}(\.[0-9]{0,8})?(,[0-9]{0,3}){0,2}`),
			rapid.StringMatching(`[0-9]{1,4},[0-9]{1,4},-?[0-9]{1,3}\.[0-9]{1,6}`),
			rapid.StringMatching(`[0-9,.e+-]{1,12}`),
		).Draw(t, "line")
		columns := rapid.IntRange(3, 4).Draw(t, "columns")
		fast := &ratingParser{line: 1, columns: columns}
		user, item, value, n := fast.fast([]byte(line + "\n"))
		if n == 0 {
			return
		}
		slow := &ratingParser{line: 1, columns: columns}
		if err := slow.slow([]byte(line)); err != nil || n != len(line)+1 {
			t.Fatalf("fast takes %d bytes of %q; slow says %v", n, line, err)
		}
		fast.add(user, item, value)
		for i, s := range []*RatingSplit{&fast.ratings.Train, &fast.ratings.Test} {
			w := []*RatingSplit{&slow.ratings.Train, &slow.ratings.Test}[i]
			if !slices.Equal(s.User, w.User) || !slices.Equal(s.Item, w.Item) || !slices.Equal(s.Value, w.Value) {
				t.Fatalf("%q: fast %v, slow %v", line, s, w)
			}
		}
	})
}

// TestFastTakesPlainLines: fast accepts plain lines; otherwise loading would be slow but correct.
func TestFastTakesPlainLines(t *testing.T) {
	p := &ratingParser{columns: 3, by: ",", ids: [2]ids{{numbers: true}, {numbers: true}}}
	for _, line := range []string{"0,0,5\n", "24982,99,-9.66\n", "1,2,3.125000\n"} {
		if _, _, _, n := p.fast([]byte(line)); n != len(line) {
			t.Errorf("fast takes %d bytes of %q", n, line)
		}
	}
}

func TestSynthetic(t *testing.T) {
	r, err := OpenRatings("")
	if err != nil {
		t.Fatal(err)
	}
	if r.Users != 7623 || r.Items != 2239 || r.Train.Len() != 184847 || r.Test.Len() != 20336 ||
		!strings.Contains(r.Name, "synthetic") {
		t.Errorf("%s: %d users, %d items, %d + %d ratings", r.Name, r.Users, r.Items, r.Train.Len(), r.Test.Len())
	}
	again, err := OpenRatings("synthetic:0.002")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Train.Value, again.Train.Value) || !slices.Equal(r.Test.Item, again.Test.Item) {
		t.Error("the same name gives different ratings")
	}
	if !slices.IsSorted(r.Train.User) || !slices.IsSorted(r.Test.User) {
		t.Error("not ordered by user")
	}
	seen := map[[2]int32]bool{}
	perItem := make([]int, r.Items)
	for _, s := range []*RatingSplit{&r.Train, &r.Test} {
		for i, v := range s.Value {
			seen[[2]int32{s.User[i], s.Item[i]}] = true
			perItem[s.Item[i]]++
			if v < 1 || v > 5 {
				t.Fatalf("rating %v", v)
			}
		}
	}
	if n := r.Train.Len() + r.Test.Len(); len(seen) != n {
		t.Errorf("%d ratings of %d pairs", n, len(seen))
	}
	slices.Sort(perItem)
	if most, middle := perItem[r.Items-1], perItem[r.Items/2]; most < 10*middle {
		t.Errorf("the most popular item has %d ratings, the middle one %d", most, middle)
	}
	for _, bad := range []string{"", "x", "0", "-1", "1.01", "NaN", "1e-9"} {
		if _, err := OpenRatings("synthetic:" + bad); !errors.Is(err, perdure.ErrUsage) ||
			!strings.Contains(err.Error(), "choose 0.0001 to 1") {
			t.Errorf("synthetic:%s: %v", bad, err)
		}
	}
}

// BenchmarkLoadRatings loads the file PERDURE_RATINGS.
func BenchmarkLoadRatings(b *testing.B) {
	path := os.Getenv("PERDURE_RATINGS")
	if path == "" {
		b.Skip("set PERDURE_RATINGS to a file of ratings")
	}
	for b.Loop() {
		if _, err := LoadRatings(path); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNames: names are numbered in order of appearance, and they change the digest.
func TestNames(t *testing.T) {
	var b strings.Builder
	fmt.Fprintln(&b, `"user";"book";"rating"`)
	for i := range 200 {
		fmt.Fprintf(&b, "\"user %d\";\"a; b %d\";\"%d\"\n", 19-i/10, i%10, i%5)
	}
	r, err := LoadRatings(writeData(t, "books.csv", b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if r.Users != 20 || r.Items != 10 || r.UserNames[0] != "user 19" || r.ItemNames[9] != "a; b 9" {
		t.Errorf("%d users, %d items, named %q and %q", r.Users, r.Items, r.UserNames, r.ItemNames)
	}
	other, err := LoadRatings(writeData(t, "books.csv", strings.ReplaceAll(b.String(), "a; b 3", "c")))
	if err != nil {
		t.Fatal(err)
	}
	if r.Digest() == other.Digest() {
		t.Error("sets with different names have the same digest")
	}
}

func TestReadPairs(t *testing.T) {
	var got []string
	err := ReadPairs(writeData(t, "pairs.tsv", "user\titem\nann\t3\n\nbob\t4\t5\n"), func(user, item string) error {
		if user == "user" {
			return errors.New("nobody")
		}
		got = append(got, user+"/"+item)
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"ann/3", "bob/4"}) {
		t.Errorf("%q, %v", got, err)
	}
	for want, text := range map[string]string{"line 2: the line has 1 column": "1,2\n3\n", "is empty": ""} {
		err := ReadPairs(writeData(t, "bad.csv", text), func(string, string) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
