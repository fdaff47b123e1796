package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// takenBefore is how many permits were taken from a key when its memory is measured.
const takenBefore = 100

// keyMemory is the bytes that a key takes after some allowed calls, by contestant.
func keyMemory(ctx context.Context, b *testbed, from []contestant, o options) (map[string]float64, error) {
	memory := map[string]float64{}
	for i, c := range from {
		if c.kind == floor || c.only == denied || !o.only.MatchString(c.name) {
			continue
		}
		tag := fmt.Sprintf("m%02d:", i)
		decide, err := c.open(b, allowed, tag)
		for calls := 0; calls < takenBefore && err == nil; calls++ {
			_, err = decide(ctx, user(0))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		if memory[c.name], err = memoryOf(ctx, b.admin, "*"+tag+"*"); err != nil {
			return nil, err
		}
	}
	return memory, nil
}

// memoryOf sums MEMORY USAGE of all keys of the pattern.
func memoryOf(ctx context.Context, c *redis.Client, pattern string) (float64, error) {
	sum := 0.0
	keys := c.Scan(ctx, 0, pattern, 10_000).Iterator()
	for keys.Next(ctx) {
		bytes, err := c.MemoryUsage(ctx, keys.Val(), 0).Result()
		if err != nil {
			return 0, fmt.Errorf("MEMORY USAGE: %w", err)
		}
		sum += float64(bytes)
	}
	return sum, keys.Err()
}
