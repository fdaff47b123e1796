package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"math"
	"os"
)

// A config says what the gateway sells, and to whom. gateway.json is the one for trying.
type config struct {
	Models map[string]price `json:"models"`
	Teams  map[string]team  `json:"teams"`
}

type team struct {
	Month micros         `json:"month"` // its budget of a calendar month
	Keys  map[string]key `json:"keys"`
}

type key struct {
	Secret          string `json:"secret"` // the API key itself, which no log and no key in Redis has
	Month           micros `json:"month"`
	TokensPerMinute int    `json:"tokens_per_minute"`
	Running         int    `json:"running"` // calls at the same time
}

// micros are micro-dollars. JSON has them in dollars.
type micros int

// UnmarshalJSON reads dollars.
func (m *micros) UnmarshalJSON(text []byte) error {
	var dollars float64
	err := json.Unmarshal(text, &dollars)
	*m = micros(math.Round(dollars * 1e6))
	return err
}

// A price is for a million tokens, as price lists have it.
type price struct {
	Input      micros `json:"input"`
	Cached     micros `json:"cached"` // input that the upstream had in its cache
	Output     micros `json:"output"`
	MostOutput int    `json:"most_output"` // tokens of the longest answer
}

// of is the price of used tokens in micro-dollars, rounded up once for each call.
func (p price) of(u usage) int {
	const million = 1_000_000
	sum := int64(u.Input-u.Details.Cached)*int64(p.Input) + int64(u.Details.Cached)*int64(p.Cached) + int64(u.Output)*int64(p.Output)
	return int((sum + million - 1) / million)
}

//go:embed gateway.json
var forTrying []byte

// readConfig reads a file, or the config for trying if path is empty.
func readConfig(path string) (c config, err error) {
	text := forTrying
	if path != "" {
		if text, err = os.ReadFile(path); err != nil {
			return c, err
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return c, d.Decode(&c)
}
