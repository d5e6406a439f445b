// Package gossiptest describes a scenario of many members as text and as numbers, so that different protocols can run
// the same scenario and share one table. It guesses nothing: an unknown or absurd value is an error, and a result
// that was not reached has no number.
package gossiptest

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Scenario is a network and its faults, which last from start to end. All members start at once and find each other.
// Then nothing happens for a while. Then one member disappears without notice.
type Scenario struct {
	N      int           // members
	Loss   float64       // fraction of messages that are lost
	Jitter time.Duration // maximum, in addition to Delay
	Watch  time.Duration // length of the quiet period
	Seed   uint64
}

// One-way delay between two members: minimum and maximum.
const (
	MinDelay = 5 * time.Millisecond
	MaxDelay = 25 * time.Millisecond
)

// Limit is the virtual time after which the scenario gives up waiting for an event.
const Limit = 5 * time.Minute

// Bounds of the values of a scenario.
const (
	maxMembers = 2000
	maxLoss    = 0.9
	maxJitter  = 5 * time.Second
	maxWatch   = time.Hour
)

// Parse reads a scenario from arguments such as "N=100", "LOSS=0.5", "JITTER=300ms", "SECONDS=30" and "SEED=1". The
// defaults are 10 members without faults, 30 seconds and seed 1.
func Parse(args []string) (Scenario, error) {
	s := Scenario{N: 10, Watch: 30 * time.Second, Seed: 1}
	seen := map[string]bool{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return s, fmt.Errorf("%q is not NAME=VALUE, such as N=100", arg)
		}
		if seen[name] {
			return s, fmt.Errorf("%s occurs twice", name)
		}
		seen[name] = true
		if err := s.set(name, value); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Scenario) set(name, value string) (err error) {
	bad := func(give string, args ...any) error {
		return fmt.Errorf("%s=%s: give %s", name, value, fmt.Sprintf(give, args...))
	}
	switch name {
	case "N":
		if s.N, err = strconv.Atoi(value); err != nil || s.N < 2 || s.N > maxMembers {
			return bad("a number of members from 2 to %d", maxMembers)
		}
	case "LOSS":
		if s.Loss, err = strconv.ParseFloat(value, 64); err != nil || math.IsNaN(s.Loss) || s.Loss < 0 || s.Loss > maxLoss {
			return bad("the share of lost messages, from 0 to %g", maxLoss)
		}
	case "JITTER":
		if s.Jitter, err = time.ParseDuration(value); err != nil || s.Jitter < 0 || s.Jitter > maxJitter {
			return bad("a time with a unit, such as 300ms, at most %v", maxJitter)
		}
	case "SECONDS":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > int(maxWatch/time.Second) {
			return bad("whole seconds from 1 to %d", int(maxWatch/time.Second))
		}
		s.Watch = time.Duration(n) * time.Second
	case "SEED":
		if s.Seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			return bad("a whole number from 0")
		}
	default:
		return fmt.Errorf("%q is unknown: a scenario has N, LOSS, JITTER, SECONDS and SEED", name)
	}
	return nil
}

// Args returns the arguments from which Parse reads the scenario.
func (s Scenario) Args() []string {
	return []string{"N=" + strconv.Itoa(s.N), "LOSS=" + strconv.FormatFloat(s.Loss, 'g', -1, 64), "JITTER=" + s.Jitter.String(),
		"SECONDS=" + strconv.Itoa(int(s.Watch/time.Second)), "SEED=" + strconv.FormatUint(s.Seed, 10)}
}

// String returns the scenario as a heading.
func (s Scenario) String() string {
	way := fmt.Sprintf("%d to %d ms one way", MinDelay.Milliseconds(), MaxDelay.Milliseconds())
	if s.Jitter > 0 {
		way += fmt.Sprintf(" and up to %v of jitter", s.Jitter)
	}
	return fmt.Sprintf("%d members, %g %% of messages lost, %s, watched for %v, seed %d", s.N, math.Round(s.Loss*1e4)/1e2, way, s.Watch, s.Seed)
}
