// Package explore tries every short history of one token bucket whose permits are also
// reserved, cancelled, given back and settled, and judges each by the bound that is
// promised: permits that are used at their instants never exceed burst + rate × t in any
// interval t. A history is up to six calls of up to three processes, with the time that
// passes between them, lost replies and steps of the server's clock. Numbers are whole, and
// histories that end in the same [World] are followed once.
//
// The rules for what a cancel and a return give back are parameters: the search finds the
// shortest history that breaks a wrong rule, and none for the right ones. Tests replay
// histories of the right rules on the scripts, so that this model and the scripts agree.
//
// Time is counted in ticks, permits in units: a permit is the same number of units under
// every rule, so that a state carries over from one rule to another exactly.
package explore
