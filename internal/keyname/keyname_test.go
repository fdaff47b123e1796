package keyname

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// texts calls visit with every text of 1 to most bytes of the alphabet.
func texts(alphabet string, most int, visit func(text string)) {
	b := make([]byte, 0, most)
	var longer func()
	longer = func() {
		for _, c := range []byte(alphabet) {
			b = append(b, c)
			visit(string(b))
			if len(b) < most {
				longer()
			}
			b = b[:len(b)-1]
		}
	}
	longer()
}

// redisTag is the tag of a key as the specification of Redis Cluster computes it, "" for none.
func redisTag(key string) string {
	for s := 0; s < len(key); s++ {
		if key[s] != '{' {
			continue
		}
		for e := s + 1; e < len(key); e++ {
			if key[e] == '}' {
				return key[s+1 : e]
			}
		}
		return ""
	}
	return ""
}

// TestEveryKeyHasANameOfItsOwnAndATag, over all keys of up to seven bytes of what names are
// made of: no two keys have one name, every name has a tag, the tag is the same in all
// limiters, and a name can be read again.
func TestEveryKeyHasANameOfItsOwnAndATag(t *testing.T) {
	heads := []Head{NewHead("p", "n", algorithms.TokenBucket), NewHead("p:q;", "n;", algorithms.LeakyBucket+"2"), NewHead("tokenbucket;", "tokenbucket;", algorithms.SlidingLog)}
	parts := []Parts{
		{Prefix: "p", Name: "n", Algorithm: "tokenbucket"},
		{Prefix: "p:q;", Name: "n;", Algorithm: "leakybucket2"},
		{Prefix: "tokenbucket;", Name: "tokenbucket;", Algorithm: "slidinglog"},
	}
	names := map[string]string{}
	keys := 0
	texts("{}a:;", 7, func(key string) {
		keys++
		tag := Tag(key)
		if own := redisTag(key); own != "" && own != tag {
			t.Fatalf("%q has the tag %q, and its names have %q", key, own, tag)
		}
		for i, head := range heads {
			name := head.Of(key)
			if i == 0 {
				if other, taken := names[name]; taken {
					t.Fatalf("%q is the name of %q and %q", name, other, key)
				}
				names[name] = key
			}
			if got := redisTag(name); got == "" || got != tag {
				t.Fatalf("%q has the tag %q, not %q", name, got, tag)
			}
			if got := string(head.Append([]byte("x"), key)); got != "x"+name || head.Size(key) != len(name) {
				t.Fatalf("%q is appended as %q", name, got)
			}
			want := parts[i]
			want.Key = key
			if got, ok := Parse(name); !ok || got != want {
				t.Fatalf("%q is read as %+v, %t", name, got, ok)
			}
		}
	})
	require.Equal(t, 5+25+125+625+3125+15625+78125, keys)
}

// TestWhatIsReadIsTheName: whatever Parse takes for a name is one, of these parts. The texts
// are of segments and of what is between them.
func TestWhatIsReadIsTheName(t *testing.T) {
	raceflag.SkipSequential(t)
	segments := []string{"p", "tokenbucket", "leakybucket2", ":", "{", "}", ";"}
	spelled := func(digits string) string {
		text := ""
		for _, d := range digits {
			text += segments[d-'0']
		}
		return text
	}
	read := 0
	texts("0123456", 7, func(digits string) {
		name := "p:" + spelled(digits)
		p, ok := Parse(name)
		if !ok {
			require.Zero(t, p, name)
			return
		}
		read++
		for segment := range strings.SplitSeq(p.Prefix+":"+p.Name, ":") {
			if algorithms.IsID(segment) || strings.ContainsAny(segment, "{}") {
				t.Fatalf("%q is read as %+v, of which %q cannot be", name, p, segment)
			}
		}
		if !algorithms.IsID(p.Algorithm) || p.Prefix == "" || p.Name == "" || p.Key == "" || strings.Contains(p.Name, ":") {
			t.Fatalf("%q is read as %+v, which cannot be", name, p)
		}
		if got := NewHead(p.Prefix, p.Name, p.Algorithm).Of(p.Key); got != name {
			t.Fatalf("%q is read as %+v, whose name is %q", name, p, got)
		}
	})
	require.NotZero(t, read)
	// And the other way: every limiter's name of every key is read as theirs.
	written := 0
	for _, prefix := range []string{"p", ";", ":", "p:p", ":p", "p:", "tokenbucket;", "p:tokenbucket;", "ptokenbucket"} {
		for _, name := range []string{"p", ";", "tokenbucket;", "leakybucket2;", "pp"} {
			for _, id := range []string{algorithms.TokenBucket, "leakybucket2"} {
				texts("0123456", 4, func(digits string) {
					want := Parts{Prefix: prefix, Name: name, Algorithm: id, Key: spelled(digits)}
					full := NewHead(prefix, name, id).Of(want.Key)
					written++
					if got, ok := Parse(full); !ok || got != want {
						t.Fatalf("%q of %+v is read as %+v, %t", full, want, got, ok)
					}
				})
			}
		}
	}
	require.Equal(t, 9*5*2*(7+49+343+2401), written)
}

func TestNames(t *testing.T) {
	head := NewHead("ratelimit", "api", algorithms.TokenBucket)
	for key, want := range map[string]struct{ name, tag string }{
		"user:42":       {"ratelimit:api:tokenbucket{user:42}", "user:42"},
		"{user:42}":     {"ratelimit:api:tokenbucket:{user:42}", "user:42"},
		"{user:42}:x":   {"ratelimit:api:tokenbucket:{user:42}:x", "user:42"},
		"x{user:42}{y}": {"ratelimit:api:tokenbucket:x{user:42}{y}", "user:42"},
		"a}b":           {"ratelimit:api:tokenbucket{a}b}", "a"},
		"a{b":           {"ratelimit:api:tokenbucket{a{b}", "a{b"},
		"{}x":           {"ratelimit:api:tokenbucket{{}x}", "{"},
		"{}{y}":         {"ratelimit:api:tokenbucket{{}{y}}", "{"},
		"{":             {"ratelimit:api:tokenbucket{{}", "{"},
		"}":             {"ratelimit:api:tokenbucket;{;}}", ";"},
		"}x{":           {"ratelimit:api:tokenbucket;{;}x{}", ";"},
		"}{y}":          {"ratelimit:api:tokenbucket:}{y}", "y"},
	} {
		require.Equal(t, want.name, head.Of(key))
		require.Equal(t, want.tag, Tag(key), key)
	}
}

// TestWhatIsNoName: other keys of the server, and names from before keys were put into braces.
func TestWhatIsNoName(t *testing.T) {
	for _, name := range []string{
		"", ":", "{", "session:42", "tokenbucket{k}", "api:tokenbucket{k}", ":api:tokenbucket{k}", "p::tokenbucket{k}",
		"p:n:tokenbucket", "p:n:tokenbucket:", "p:n:tokenbucket:k", "p:n:tokenbucket{}", "p:n:tokenbucket{k", "p:n:tokenbucket{k}x",
		"p:n:tokenbucket{{k}}", "p:n:tokenbucket;{;k}", "p:n:tokenbucket;{;}", "p:n:tokenbucket;:{k}", "p:n:tokenbucket:{}k", "p:n:tokenbucketk}",
		"{p}:n:tokenbucket{k}", "p:n}:tokenbucket{k}", "p:n:tokenbuckets{k}", "tokenbucket:n:tokenbucket{k}", "p:tokenbucket:tokenbucket{k}",
	} {
		p, ok := Parse(name)
		require.False(t, ok, name)
		require.Zero(t, p, name)
	}
}

var sink string

// BenchmarkName is what naming a key costs: one concatenation, one allocation.
func BenchmarkName(b *testing.B) {
	head := NewHead("ratelimit", "api", algorithms.TokenBucket)
	for what, key := range map[string]string{"untagged": "user:1234567", "tagged": "{user:1234567}"} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = head.Of(key)
			}
		})
	}
	b.Run("plain", func(b *testing.B) {
		plain, key := string(head)+":", "user:1234567"
		b.ReportAllocs()
		for b.Loop() {
			sink = plain + key
		}
	})
}

func TestNamingAKeyAllocatesOnce(t *testing.T) {
	head, buffer := NewHead("ratelimit", "api", algorithms.TokenBucket), make([]byte, 0, 100)
	for _, key := range []string{"user:1234567", "{user:1234567}", "}user:1234567"} {
		require.EqualValues(t, 1, testing.AllocsPerRun(100, func() { sink = head.Of(key) }), key)
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _, _ = Tag(key), head.Size(key), head.Append(buffer, key) }), key)
	}
}

// TestTicketsOfAKey: the name of its tickets is in the key's slot, of no other key, and of no limiter.
func TestTicketsOfAKey(t *testing.T) {
	names := map[string]string{}
	for _, head := range []Head{NewHead("ratelimit", "api", algorithms.TokenBucket), NewHead("a:b", "x", algorithms.FixedWindow), NewHead("a:b", "x", algorithms.CalendarWindow+"2")} {
		for _, key := range []string{"k", "{k}", "{k}:x", "}", "}{", "a:tokenbucket{b}", "tokenbucket", ":", "/tickets{k}", "{k}/tickets", "{"} {
			name := head.Of(key)
			tickets := Tickets(name)
			require.Equal(t, hashTag(name), hashTag(tickets), name)
			require.Equal(t, string(head)+"/tickets"+name[len(head):], tickets)
			for _, other := range []string{name, tickets} {
				require.Empty(t, names[other], "%s of %s", other, name)
				names[other] = name
			}
			if p, ok := Parse(tickets); ok { // a prefix that nobody has
				require.Contains(t, p.Prefix, "/tickets")
			}
		}
	}
}
