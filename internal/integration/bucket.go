package integration

import (
	"reflect"

	"github.com/tryacquire/ratelimit"
)

// IsBucket reports whether a token or leaky bucket gave the answer p. Its permits come back one by one, and only the fields
// of a response tell clients so; no other caller needs to know.
func IsBucket(p *ratelimit.PartResult) bool {
	return reflect.ValueOf(p).Elem().FieldByIndex(bucket).Bool()
}

var bucket = func() []int {
	f, ok := reflect.TypeFor[ratelimit.PartResult]().FieldByName("bucket")
	if !ok {
		panic("ratelimit.PartResult has no field bucket")
	}
	return f.Index
}()
