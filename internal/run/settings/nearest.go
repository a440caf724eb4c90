package settings

// Nearest returns the element of known that the user most likely meant by word, or "" if none is close enough.
func Nearest(word string, known []string) string {
	best, least := "", max(1, len([]rune(word))/3)+1
	for _, k := range known {
		if d := distance([]rune(word), []rune(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// Suggest returns a suggestion to append to an error, such as `; did you mean workers?`, or "" if no known word is
// close.
func Suggest(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// distance returns the number of insertions, deletions, substitutions and swaps of adjacent letters that turn a into b
// (optimal string alignment).
func distance(a, b []rune) int {
	const longest = 64 // longer than any key
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range b {
			changed := row[j]
			if a[i] != b[j] {
				changed++
			}
			next[j+1] = min(changed, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
