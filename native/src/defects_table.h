/* The list of seeded defects: name, kind, and what is wrong in one sentence. Included by defects.h, which numbers them,
 * and by defects.c, which names them; in builds with STARPULLM_DEFECTS only. */

/* What a task says of its accesses; codelets/lies.c has the sites. */
DEFECT_ENTRY(write_as_read_matmul_forward, "access mode", "matmul_forward declares its output as read")
DEFECT_ENTRY(write_as_read_attention_forward, "access mode", "attention_forward declares att as read")
DEFECT_ENTRY(write_as_read_encoder_forward, "access mode", "encoder_forward declares its output as read")
DEFECT_ENTRY(write_as_read_residual_backward, "access mode", "residual_backward declares its second output as read")
DEFECT_ENTRY(update_as_read_gradient_add, "access mode", "gradient_add declares the sum that it adds to as read")
DEFECT_ENTRY(update_as_read_matmul_backward_weight, "access mode", "a later link of the chain declares dweight as read")
DEFECT_ENTRY(update_as_read_adamw, "access mode", "adamw_update declares the parameters as read")
DEFECT_ENTRY(update_as_write_adamw, "access mode", "adamw_update declares m, which it reads too, as written")
DEFECT_ENTRY(update_as_write_layernorm_backward, "access mode", "layernorm_backward_input declares dinp as written")
DEFECT_ENTRY(update_as_write_mean_loss, "access mode", "mean_loss of a later sub-batch declares the mean as written")
DEFECT_ENTRY(read_as_write_softmax_forward, "access mode",
             "softmax_forward declares the logits, which it reads, as written")
DEFECT_ENTRY(read_as_update_attention_backward, "access mode",
             "attention_backward declares qkv, which it reads, as updated")
DEFECT_ENTRY(undeclared_gelu_backward, "access mode", "gelu_backward doesn't declare the activation that it reads")
DEFECT_ENTRY(undeclared_crossentropy_backward, "access mode",
             "crossentropy_softmax_backward doesn't declare the probabilities")
DEFECT_ENTRY(undeclared_layernorm_backward_weight, "access mode", "layernorm_backward_weight doesn't declare dweight")
DEFECT_ENTRY(undeclared_encoder_forward, "access mode", "encoder_forward doesn't declare wte")

DEFECT_ENTRY(alias_activation, "lost dependency", "gelu_forward reads its input through a handle that nobody else uses")
DEFECT_ENTRY(alias_gradient, "lost dependency", "matmul_backward_weight adds to dweight through a handle of its own")
DEFECT_ENTRY(alias_parameters, "lost dependency", "adamw_update writes the parameters through a handle of its own")
DEFECT_ENTRY(commuting_gradients, "lost dependency", "StarPU may run the links of a gradient's chain in any order")

DEFECT_ENTRY(sub_batch_skipped, "sub-batch", "the last sub-batch has no backward pass")
DEFECT_ENTRY(sub_batch_twice, "sub-batch", "the last sub-batch has two backward passes")
DEFECT_ENTRY(sub_batches_reversed, "sub-batch", "after the first, backward passes come in falling order")
DEFECT_ENTRY(sub_batch_tokens, "sub-batch", "every sub-batch is computed from the tokens of the first")
DEFECT_ENTRY(encoder_early, "sub-batch", "wte takes an encoder's contribution before the last of the logits'")

DEFECT_ENTRY(stale_probabilities, "stale activation", "the probabilities of the first iteration are used by all")
DEFECT_ENTRY(stale_tokens, "stale activation", "encoder_backward takes the tokens of the slot that step 0 used")
DEFECT_ENTRY(buffer_shared, "stale activation", "all blocks share one buffer for ln2, which the backward pass reads")

DEFECT_ENTRY(gradient_not_restarted, "zeroing", "an iteration's gradients are added to those of the last one")
DEFECT_ENTRY(redux_not_forgotten, "zeroing", "redux adds to the last step's gradient")
DEFECT_ENTRY(redux_from_one, "zeroing", "redux starts a worker's copy at 1")
DEFECT_ENTRY(padding_not_zeroed, "zeroing", "crossentropy_softmax_backward leaves the padding of the logits' gradient")
DEFECT_ENTRY(positions_not_zeroed, "zeroing", "encoder_backward leaves the gradients of positions that aren't used")

DEFECT_ENTRY(update_early, "update", "parameters are updated before the encoder's contributions")

DEFECT_ENTRY(loss_scale, "scale", "the loss gradient is that of a sub-batch's mean, not the batch's")
DEFECT_ENTRY(mean_loss_divisor, "scale", "the mean loss is divided by a sub-batch's tokens")

DEFECT_ENTRY(split_sum, "arithmetic", "the softmax's sum is made of one partial sum per vector")
DEFECT_ENTRY(fused_update, "arithmetic", "adamw_update computes m with a fused multiplication and addition")
DEFECT_ENTRY(fused_layernorm, "arithmetic", "layernorm_forward adds the bias with a fused multiplication and addition")
DEFECT_ENTRY(padding_in_softmax, "arithmetic", "the softmax goes over the padded vocabulary")
DEFECT_ENTRY(tile_edge, "arithmetic", "a transposition takes the wrong columns past its last whole square")
DEFECT_ENTRY(tile_row, "arithmetic", "of a tile that is narrower than its vectors the last row isn't stored")
DEFECT_ENTRY(softmax_maximum, "arithmetic", "the softmax doesn't take the largest logit away")
DEFECT_ENTRY(layernorm_epsilon, "arithmetic", "layernorm_forward adds 1e-6 to the variance")
DEFECT_ENTRY(causal_edge, "arithmetic", "attention_forward lets a position see the one after it")
DEFECT_ENTRY(gelu_constant, "arithmetic", "gelu_forward has 0.0447 for 0.044715")
DEFECT_ENTRY(adamw_step, "arithmetic", "adamw_update corrects for one step more than there were")
DEFECT_ENTRY(adamw_epsilon, "arithmetic", "adamw_update adds epsilon under the square root")
DEFECT_ENTRY(adamw_bias, "arithmetic", "adamw_update doesn't correct v")
DEFECT_ENTRY(flush_to_zero, "arithmetic", "tasks run with flush-to-zero and denormals-are-zero switched on")

DEFECT_ENTRY(threads_in_sum, "threads", "with several threads the mean loss is summed from the last row on")
DEFECT_ENTRY(thread_share, "threads", "with several threads nobody computes the last row of a softmax")

DEFECT_ENTRY(tree_drops_last, "reduction", "the tree leaves the last pair out")

DEFECT_ENTRY(wrong_owner, "ranks", "StarPU is told the wrong one of two ranks as the owner of wte")
DEFECT_ENTRY(broadcast_skipped, "ranks", "parameters that rank 0 updates don't reach the other ranks again")
DEFECT_ENTRY(targets_of_next_rank, "ranks", "the gradient of the loss is made from the targets of the next rank")
DEFECT_ENTRY(chain_not_moved, "ranks", "the running sum of the gradients stays on its rank")

DEFECT_ENTRY(argument_leak, "leak", "no task's argument is freed")
DEFECT_ENTRY(handle_leak, "leak", "a closed trainer's handles stay registered")
DEFECT_ENTRY(loss_leak, "leak", "no loss is freed")

DEFECT_ENTRY(lost_wakeup, "wake-up", "who waits for a submission isn't told of its end")
DEFECT_ENTRY(lost_loss, "wake-up", "who waits for a loss isn't told of its arrival")

DEFECT_ENTRY(slow_matmul, "speed", "every matmul_forward takes 20 % longer")

DEFECT_ENTRY(state_without_v, "saved state", "a training state doesn't have v")
DEFECT_ENTRY(state_step, "saved state", "a resumed run counts its updates from 0")
