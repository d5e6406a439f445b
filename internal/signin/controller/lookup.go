package controller

import (
	"context"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// A roleInfo is what the programs need to know about a ClusterRole.
type roleInfo struct {
	exists bool
	rules  []signin.PolicyRule // as stored
}

// readRole reads a ClusterRole. The controller manager stores the rules of an aggregated role.
func readRole(ctx context.Context, c client.Reader, name access.Role) (roleInfo, error) {
	role := new(rbacv1.ClusterRole)
	if err := c.Get(ctx, client.ObjectKey{Name: string(name)}, role); err != nil {
		return roleInfo{}, client.IgnoreNotFound(err)
	}
	return roleInfo{true, RoleRules(role)}, nil
}

// RoleRules returns the stored rules of a ClusterRole.
func RoleRules(role *rbacv1.ClusterRole) []signin.PolicyRule {
	rules := make([]signin.PolicyRule, len(role.Rules))
	for i, r := range role.Rules {
		rules[i] = signin.PolicyRule(r)
	}
	return rules
}

// A lookupCache caches answers of the API server about objects that this process may read by name but
// not watch: roles and admission policies. The zero value is ready to use.
type lookupCache[T any] struct {
	mu      sync.Mutex
	entries map[string]lookup[T]
}

type lookup[T any] struct {
	answer    T
	checkedAt time.Time
}

// get returns the answer to question. It uses the cached answer if that is younger than maxAge.
// Otherwise it calls find. Errors are not cached.
func (c *lookupCache[T]) get(question string, now time.Time, maxAge time.Duration, find func() (T, error)) (T, error) {
	c.mu.Lock()
	a, known := c.entries[question]
	c.mu.Unlock()
	if age := now.Sub(a.checkedAt); known && age >= 0 && age < maxAge {
		return a.answer, nil
	}
	answer, err := find()
	if err != nil {
		return answer, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]lookup[T]{}
	}
	c.entries[question] = lookup[T]{answer, now}
	return answer, nil
}
