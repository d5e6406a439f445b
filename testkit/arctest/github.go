//go:build unix

package arctest

import (
	"errors"
	"slices"
	"strings"
	"sync"
)

// ScaleSetFake is a [GitHub] that has only scale sets. The zero value is empty.
type ScaleSetFake struct {
	mu   sync.Mutex
	sets []ScaleSet
	last int64
	deny error
}

// ScaleSet is a scale set at GitHub.
type ScaleSet struct {
	ID                 int64
	Place, Group, Name string
	Labels             []string // labels from its creation
}

// EnsureScaleSet creates or finds a scale set. GitHub ignores the case of names.
func (p *ScaleSetFake) EnsureScaleSet(place, group, name string, labels []string, secret map[string][]byte) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refused(secret); err != nil {
		return 0, err
	}
	for _, s := range p.sets {
		if strings.EqualFold(s.Place, place) && strings.EqualFold(s.Group, group) && strings.EqualFold(s.Name, name) {
			return s.ID, nil
		}
	}
	p.last++
	p.sets = append(p.sets, ScaleSet{ID: p.last, Place: place, Group: group, Name: name, Labels: slices.Clone(labels)})
	return p.last, nil
}

// DeleteScaleSet deletes a scale set.
func (p *ScaleSetFake) DeleteScaleSet(_ string, id int64, secret map[string][]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refused(secret); err != nil {
		return err
	}
	p.sets = slices.DeleteFunc(p.sets, func(s ScaleSet) bool { return s.ID == id })
	return nil
}

// Deny lets every request fail with err until it is called with nil, as if the App was removed or GitHub was down.
func (p *ScaleSetFake) Deny(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deny = err
}

// ScaleSets returns all scale sets.
func (p *ScaleSetFake) ScaleSets() []ScaleSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sets)
}

func (p *ScaleSetFake) refused(secret map[string][]byte) error {
	if p.deny != nil {
		return p.deny
	}
	return malformed(secret)
}

// malformed returns an error if a credential is invalid. A credential with both forms is invalid.
func malformed(secret map[string][]byte) error {
	app := len(secret["github_app_id"]) > 0 && len(secret["github_app_installation_id"]) > 0 && len(secret["github_app_private_key"]) > 0
	switch token := len(secret["github_token"]) > 0; {
	case app && token:
		return errors.New("the credential has a token and an App")
	case !app && !token:
		return errors.New("the credential has neither a token nor an App")
	}
	return nil
}

// NamedGitHub is a fake GitHub that identifies an organisation by name and requires no credential.
type NamedGitHub interface {
	EnsureScaleSet(org, group, name string) (id int64)
	DeleteScaleSet(id int64) (ok bool)
}

// At returns a [GitHub] for g. refuses is optional. It returns the error of the place for a credential before any
// change, or nil to accept it.
func At(g NamedGitHub, refuses func(place string, secret map[string][]byte) error) GitHub {
	return byName{g, refuses}
}

type byName struct {
	g       NamedGitHub
	refuses func(place string, secret map[string][]byte) error
}

func (b byName) enter(place string, secret map[string][]byte) error {
	if err := malformed(secret); err != nil {
		return err
	}
	if b.refuses != nil {
		return b.refuses(place, secret)
	}
	return nil
}

func (b byName) EnsureScaleSet(place, group, name string, _ []string, secret map[string][]byte) (int64, error) {
	if err := b.enter(place, secret); err != nil {
		return 0, err
	}
	return b.g.EnsureScaleSet(place[strings.LastIndex(place, "/")+1:], group, name), nil
}

func (b byName) DeleteScaleSet(place string, id int64, secret map[string][]byte) error {
	if err := b.enter(place, secret); err != nil {
		return err
	}
	b.g.DeleteScaleSet(id)
	return nil
}
