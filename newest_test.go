//go:build newest

package ratelimit

import "github.com/redis/go-redis/v9"

func init() {
	fullDuplex = func(c *redis.Client) (*redis.AutoPipeliner, error) {
		return c.AutoPipelineWithOptions(&redis.AutoPipelineOptions{FullDuplex: true})
	}
}
