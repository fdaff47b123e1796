package otherclient

var SlotOf = slotOf
