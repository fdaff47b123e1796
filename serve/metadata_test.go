package serve

import (
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
)

const withMetadata = `
domain: shop
descriptors:
- key: service
  value: one
  rate_limit: {unit: day, requests_per_unit: 2}
  metadata: {name: one, quota: {name: one, left: [1, {a: yes}]}, none: ~}
- key: service
  value: two
  quota_mode: true
  rate_limit: {unit: day, requests_per_unit: 1}
  metadata: {name: two, quota: {name: two, unit: day}, other: 1.5}
- key: watched
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 0}
  metadata: {watched: true}
- key: free
  rate_limit: {unlimited: true}
  metadata: {free: true}
- key: old
  rate_limit: {unit: day, requests_per_unit: 1, name: old}
  metadata: {old: true}
- key: new
  rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: old}]}
- key: spare
  quota_mode: true
  rate_limit: {unit: day, requests_per_unit: 9}
- key: group
  metadata: {group: true}
  descriptors: [{key: service, rate_limit: {unit: day, requests_per_unit: 9}}]
`

// TestMetadata: the answers are those of envoyproxy/ratelimit (f2fb157) to the same requests.
func TestMetadata(t *testing.T) {
	files := func() ([]Source, error) { return []Source{{"f", []byte(withMetadata)}}, nil }
	onStage(t, Options{Files: files, Metadata: true}, func(t *testing.T, s stage) {
		expect := func(code pb.RateLimitResponse_Code, want string, r *pb.RateLimitRequest) {
			t.Helper()
			answer, err := s.ShouldRateLimit(t.Context(), r)
			require.NoError(t, err)
			require.Equal(t, code, answer.GetOverallCode())
			got, err := answer.GetDynamicMetadata().MarshalJSON()
			require.NoError(t, err)
			require.JSONEq(t, want, string(got))
		}
		const ok, over = pb.RateLimitResponse_OK, pb.RateLimitResponse_OVER_LIMIT
		one := `"metadata": {"name": "one", "quota": {"name": "one", "left": [1, {"a": true}]}, "none": null}`
		expect(ok, `{"domain": "shop", "descriptors": [{"entries": ["service=one"]}], `+one+`}`, request(0, "service=one"))
		// The first value of a name is taken, and structs are merged.
		expect(ok, `{"domain": "shop", "hitsAddend": 1, "descriptors": [{"entries": ["service=two"], "hitsAddend": 1}, {"entries": ["service=one"], "hitsAddend": 0}],
			"metadata": {"name": "two", "quota": {"name": "two", "unit": "day", "left": [1, {"a": true}]}, "other": 1.5, "none": null}}`, request(1, "service=two:1", "service=one:0"))
		// A descriptor over its limit is left out, even one that denies nothing.
		expect(ok, `{"domain": "shop", "descriptors": [{"entries": ["service=one"]}, {"entries": ["service=two"]}, {"entries": ["spare=1"]}], `+one+`}`, request(0, "service=one", "service=two", "spare=1"))
		expect(over, `{"domain": "shop", "descriptors": [{"entries": ["service=one"]}]}`, request(0, "service=one"))
		// In shadow mode nothing is over its limit. What is replaced or unlimited has none, nor has a descriptor above it.
		expect(ok, `{"domain": "shop", "descriptors": [{"entries": ["watched=1"]}, {"entries": ["free=1"]}, {"entries": ["old=1"]}, {"entries": ["new=1"]}, {"entries": ["group=1", "service=1"]}, {"entries": ["unknown=1"]}],
			"metadata": {"watched": true}}`, request(0, "watched=1", "free=1", "old=1", "new=1", "group=1,service=1", "unknown=1"))
		override := request(3, "service=three")
		override.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR}
		expect(ok, `{"domain": "shop", "hitsAddend": 3, "descriptors": [{"entries": ["service=three"], "limit": "requests_per_unit:5 unit:HOUR"}]}`, override)
	})
	onStage(t, Options{Files: files}, func(t *testing.T, s stage) {
		answer, err := s.ShouldRateLimit(t.Context(), request(1, "service=one"))
		require.NoError(t, err)
		require.Nil(t, answer.GetDynamicMetadata())
	})
	require.EqualError(t, Check(false, Source{"f", []byte("domain: d\ndescriptors:\n- key: a\n  metadata: [1]\n- {key: b, metadata: {x: .inf}}")}),
		"ratelimit: invalid configuration:\nf:4: descriptor d.a: metadata is no map; write fields, such as \"name: value\"\n"+
			"f:5: descriptor d.b: metadata: x is .inf, which is no number in JSON; write it in quotes")
}
