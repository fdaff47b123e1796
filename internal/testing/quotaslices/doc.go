// Package quotaslices searches every short history of one key whose permits are also leased: a process takes a slice of
// n permits at once, and spends it in memory until it ends. A history is up to five calls of a few processes, plain and
// leased, by limiters of one rule or of several, with the time between them, late and lost replies, permits that are
// given back, and steps of the server's clock. Numbers are whole.
//
// The search does not choose when a slice is spent: it counts every slice that could be spent within an interval as spent
// in it. So a process that crashes, or a caller that leaves, is a history with less spent, which the same count covers.
//
// The result is the worst excess: by how much the permits that may have been spent in some interval exceed what the
// rule promises for it. It is 0 for the rules that the scripts follow. The other rules are there because a search that
// does not find what they break proves nothing.
package quotaslices
