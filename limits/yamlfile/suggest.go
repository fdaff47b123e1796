package yamlfile

import (
	"slices"
	"strings"
)

// Instead says which of the words was meant, if one is near, else which there are.
func Instead(text string, words []string) string {
	best, distance := "", min(len(text), 1+max(1, len(text)/3))
	for _, w := range words {
		d := edits(strings.ToLower(text), w)
		if len(text) > 2 && strings.HasPrefix(w, strings.ToLower(text)) {
			d = 1
		}
		if d < distance {
			best, distance = w, d
		}
	}
	switch {
	case best != "":
		return "did you mean " + Shown(best) + "?"
	case len(words) == 0:
		return "leave it out"
	}
	return "write " + Or(words)
}

// Or is the words as a sentence has them.
func Or(words []string) string {
	shown := make([]string, len(words))
	for i, w := range words {
		shown[i] = Shown(w)
	}
	words = shown
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// edits is how many characters have to be changed, added, left out or swapped with their neighbour to make b of a
// (optimal string alignment). It is as large as can be for words that are far too long to be meant.
func edits(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	var before, row []int
	next := make([]int, len(b)+1)
	for j := range next {
		next[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, row, next = row, next, make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			next[j] = slices.Min([]int{row[j] + 1, next[j-1] + 1, row[j-1] + same})
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
	}
	return next[len(b)]
}
