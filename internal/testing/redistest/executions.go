package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Executions returns how many scripts the server has begun to execute since it was started (or since CONFIG RESETSTAT):
// its calls of EVAL and EVALSHA, less those that were answered NOSCRIPT. For a ClusterClient it is the sum over the
// masters that are alive, for a Ring over its shards.
//
// A script that raised or returned an error is counted, because what it wrote before the error stays. So the
// failed_calls of INFO commandstats are not subtracted: they include such scripts as well as NOSCRIPT, which INFO
// errorstats (Redis 6.2) counts separately. Calls that are rejected before the script is looked up, such as with
// READONLY, OOM, LOADING or MOVED, are not counted.
func Executions(t testing.TB, client redis.UniversalClient) int64 {
	t.Helper()
	ctx, cancel := callContext()
	defer cancel()
	var sum atomic.Int64
	add := func(ctx context.Context, c *redis.Client) error {
		n, err := executions(ctx, c)
		sum.Add(n)
		return err
	}
	var err error
	switch c := client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, add)
	case *redis.Ring:
		err = c.ForEachShard(ctx, add)
	case *redis.Client:
		err = add(ctx, c)
	default:
		err = fmt.Errorf("unknown client %T", client)
	}
	if err != nil {
		t.Fatalf("redistest: count executions: %v", err)
	}
	return sum.Load()
}

func executions(ctx context.Context, client *redis.Client) (int64, error) {
	commands, err := client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	failures, err := client.Info(ctx, "errorstats").Result()
	if err != nil {
		return 0, err
	}
	var n int64
	for _, name := range []string{"eval", "evalsha", "eval_ro", "evalsha_ro"} {
		calls, countErr := statistic(infoField(commands, "cmdstat_"+name), "calls")
		n, err = n+calls, errors.Join(err, countErr)
	}
	unknown, countErr := statistic(infoField(failures, "errorstat_NOSCRIPT"), "count")
	return n - unknown, errors.Join(err, countErr)
}

// statistic returns one number of a field such as "calls=3,usec=70,failed_calls=1", or 0 when the field is empty.
func statistic(field, name string) (int64, error) {
	for pair := range strings.SplitSeq(field, ",") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, nil
}

// WholeScripts returns how many scripts the server has been sent since it was started (or since CONFIG RESETSTAT), by
// EVAL or SCRIPT LOAD, and how many calls it has answered NOSCRIPT: 0 if every call named a script that the server
// knew.
func WholeScripts(t testing.TB, client *redis.Client) int64 {
	t.Helper()
	ctx, cancel := callContext()
	defer cancel()
	var n int64
	for section, fields := range map[string]map[string]string{
		"commandstats": {"cmdstat_eval": "calls", "cmdstat_script|load": "calls"},
		"errorstats":   {"errorstat_NOSCRIPT": "count"},
	} {
		info, err := client.Info(ctx, section).Result()
		if err != nil {
			t.Fatalf("redistest: count whole scripts: %v", err)
		}
		for field, name := range fields {
			count, err := statistic(infoField(info, field), name)
			if err != nil {
				t.Fatalf("redistest: count whole scripts: %v", err)
			}
			n += count
		}
	}
	return n
}
