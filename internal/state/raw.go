package state

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Raw is what Redis holds under a key: its type, and its first elements in order, as they stand there;
// a field of a hash and a score with "=" behind it. The type is "none" if there is no key. more says that
// there are more elements; most may be 0, for all.
func Raw(ctx context.Context, c redis.Cmdable, key string, most int) (kind string, elements []string, more bool, err error) {
	if kind, err = c.Type(ctx, key).Result(); err != nil {
		return "", nil, false, err
	}
	last := int64(most) // one more than is returned, or -1 for all
	if most == 0 {
		last = -1
	}
	switch kind {
	case "string":
		var text string
		text, err = c.Get(ctx, key).Result()
		elements = []string{text}
	case "list":
		elements, err = c.LRange(ctx, key, 0, last).Result()
	case "hash":
		var fields map[string]string
		fields, err = c.HGetAll(ctx, key).Result()
		for field, value := range fields {
			elements = append(elements, field+"="+value)
		}
		slices.Sort(elements)
	case "zset":
		var members []redis.Z
		members, err = c.ZRangeWithScores(ctx, key, 0, last).Result()
		for _, z := range members {
			elements = append(elements, strconv.FormatFloat(z.Score, 'f', -1, 64)+"="+z.Member.(string))
		}
	}
	if more = most > 0 && len(elements) > most; more {
		elements = elements[:most]
	}
	return kind, elements, more, err
}

// RawText is what Raw returns as one line: the type, and the elements.
func RawText(ctx context.Context, c redis.Cmdable, key string) (string, error) {
	kind, elements, _, err := Raw(ctx, c, key, 0)
	return strings.Join(append([]string{kind}, elements...), " "), err
}
