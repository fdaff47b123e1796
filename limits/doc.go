// Package limits reads limits from a file, and puts a changed file in force while the program runs.
//
//	limits:
//	  api:
//	    algorithm: token_bucket
//	    rate: 100/m
//	    burst: 20
//
// [Load] checks the whole file, and names every mistake with its line and the remedy. [Set.Limiter] returns the limiter
// of a name, which follows the file:
//
//	set, err := limits.Load(client, "limits.yaml", limits.Options{})
//	...
//	go set.Watch(ctx, time.Second, func(err error) { log.Print("limits.yaml: ", err) })
//	api, err := set.Limiter("api")
//	...
//	result, err := api.TryAcquire(ctx, "user:42")
//
// What has been counted stays counted: it is in Redis, under the limit's name. docs/limits.md has every field.
package limits
